#include "integration_tests/megatron/engine_training.h"

#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "integration_tests/experts/expert_training.h"

namespace accelerate {

using simulator::Cluster;
using simulator::Rank;

lm::Config tiny_model(lm::Blocks blocks, bool has_experts) {
  return has_experts ? tiny_experts() : lm::model_config("tiny", {.blocks = blocks});
}

lm::Config small_model() {
  return lm::model_config("tiny", {.blocks = lm::Blocks::kLlama, .layers = kSmallLayers});
}

MegatronLMPlugin plugin_of_formula(int64_t layers, const MegatronLMPlugin& degrees) {
  MegatronLMPlugin plugin = degrees;
  if (!plugin.num_micro_batches) plugin.num_micro_batches = 4;
  plugin.train_iters = 10;
  plugin.lr_decay_style = "constant";
  nlohmann::ordered_json others =
      plugin.other_megatron_args.value_or(nlohmann::ordered_json::object());
  others["model_type_name"] = "gpt";
  others["num_layers"] = layers;
  others["eos_token_id"] = 255;  // which no text has
  plugin.other_megatron_args = std::move(others);
  return plugin;
}

EngineJob::EngineJob(const lm::Config& config, const MegatronLMPlugin& plugin,
                     const Formula& formula, int64_t rows)
    : config_(config), formula_(formula), rows_(rows) {
  accelerator_.emplace(AcceleratorOptions{.megatron_lm_plugin = plugin});
  MegatronLMPlugin& prepared = *accelerator_->megatron_lm_plugin();
  const int64_t shares = accelerator_->state().data_share().count;
  const nlohmann::json defaults = {{"lr", 0.1}, {"momentum", 0.9}, {"weight_decay", 0.0}};
  set_prepared_args(prepared,
                    {.optimizer = MegatronOptimizerFacts{"SGD", defaults},
                     .scheduler = MegatronLMDummyScheduler{},
                     .batch_sizes = {rows / shares / *prepared.num_micro_batches}},
                    accelerator_->num_processes());
  lm::Lm net(config);
  if (config.experts > 0) {
    fill_experts_by_formula(*net, formula);
  } else {
    fill_by_formula(*net, formula);
  }
  engine_.emplace(*accelerator_, net.ptr());
}

MegatronBatch EngineJob::batch(int step) const {
  const auto [inputs, labels] = formula_batch(step, rows_, config_.sequence_length, formula_);
  const at::Tensor text = torch::cat({inputs, labels.narrow(1, config_.sequence_length - 1, 1)}, 1);
  const DataShare share = accelerator_->state().data_share();
  const int64_t own = rows_ / share.count;
  return {{"text", text.narrow(0, share.index * own, own)}};
}

NamedTensors EngineJob::whole() const {
  NamedTensors tensors = accelerator_->get_state_dict(engine_->model());
  for (auto& [name, tensor] : tensors) tensor = tensor.cpu().clone();
  return tensors;
}

void run_engines(const std::string& cluster, const std::shared_ptr<simulator::SimDisk>& disk,
                 const lm::Config& config, const MegatronLMPlugin& plugin, const Formula& formula,
                 const std::function<void(EngineJob& job, int rank)>& body) {
  Cluster ranks(cluster, {.disk = disk});
  ranks.run_on_every_rank([&](Rank& rank) {
    EngineJob job(config, plugin, formula);
    body(job, rank.index());
  });
}

FormulaOutcome train_by_engine(const std::string& cluster, const lm::Config& config,
                               const MegatronLMPlugin& plugin, const Formula& formula, int steps) {
  std::vector<FormulaOutcome> outcomes(static_cast<size_t>(Cluster(cluster).world_size()));
  run_engines(cluster, nullptr, config, plugin, formula, [&](EngineJob& job, int rank) {
    FormulaOutcome& own = outcomes[static_cast<size_t>(rank)];
    for (int step = 0; step < steps; ++step) {
      const MegatronStep made = job.engine().train_step(job.batch(step));
      own.losses.push_back(made.loss.item<double>());
      own.norms.push_back(made.grad_norm.value());
    }
  });
  for (const FormulaOutcome& each : outcomes) {
    EXPECT_EQ(each.losses, outcomes[0].losses) << "every rank is told the same loss";
    EXPECT_EQ(each.norms, outcomes[0].norms);
  }
  return outcomes[0];
}

}  // namespace accelerate
