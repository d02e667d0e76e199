#include "integration_tests/experts/expert_training.h"

#include <cmath>
#include <cstddef>
#include <utility>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/base/access.h"
#include "accelerate/base/mesh_axis.h"
#include "accelerate/mesh/device_mesh.h"
#include "simulator/trace/trace.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Rank;

}  // namespace

lm::Config tiny_experts(int64_t layers) {
  return lm::model_config("tiny", {.blocks = lm::Blocks::kLlama, .layers = layers, .experts = 4});
}

void fill_experts_by_formula(lm::LmImpl& net, const Formula& formula) {
  constexpr char kExperts[] = ".experts.";
  const torch::NoGradGuard no_grad;
  for (const auto& item : net.named_parameters()) {
    const std::string& name = item.key();
    const size_t at = name.find(kExperts);
    if (at == std::string::npos) {
      item.value().copy_(formula_values(formula, name, item.value().sizes()));
      continue;
    }
    const std::string path = name.substr(0, at), layer = name.substr(at + sizeof(kExperts) - 1);
    for (int64_t i = 0; i < item.value().size(0); ++i) {
      const at::Tensor expert = item.value()[i];
      expert.copy_(formula_values(formula, absl::StrCat(path, kExperts, i, ".", layer, ".weight"),
                                  expert.sizes()));
    }
  }
}

std::vector<std::shared_ptr<MixtureOfExpertsImpl>> mixtures_of_blocks(lm::LmImpl& net) {
  std::vector<std::shared_ptr<MixtureOfExpertsImpl>> mixtures;
  for (const auto& module : net.modules()) {
    if (auto mixture = std::dynamic_pointer_cast<MixtureOfExpertsImpl>(module)) {
      mixtures.push_back(std::move(mixture));
    }
  }
  return mixtures;
}

std::pair<double, double> run_pass(Accelerator& accelerator, PreparedModel<lm::LmImpl>& model,
                                   const at::Tensor& inputs, const at::Tensor& labels,
                                   double loss_factor) {
  // Along sp a rank is given its tokens of each sequence; along cp a scope leaves it them.
  const DeviceMesh* const mesh = accelerator.torch_device_mesh();
  const auto size_along = [mesh](MeshAxis axis) { return mesh != nullptr ? mesh->size(axis) : 1; };
  const int64_t length = inputs.size(1) / size_along(MeshAxis::kSp);
  const int64_t first_token = mesh != nullptr ? length * mesh->coordinate(MeshAxis::kSp) : 0;
  const auto part = [&](const at::Tensor& all) {
    return all.narrow(1, first_token, length).to(accelerator.device());
  };
  const at::Tensor tokens = part(inputs), targets = part(labels);
  const bool divides_sequences = size_along(MeshAxis::kCp) * size_along(MeshAxis::kSp) > 1;
  const at::Tensor positions = at::arange(first_token, first_token + length, tokens.options());
  const auto context = accelerator.maybe_context_parallel({tokens, targets, positions}, {1, 1, 0});
  if (size_along(MeshAxis::kPp) > 1) {
    const auto scaled_loss = [loss_factor](const at::Tensor& logits,
                                           const at::Tensor& labels_of_rows) {
      return torch::cross_entropy_loss(logits.flatten(0, 1), labels_of_rows.flatten()) *
             loss_factor;
    };
    const at::Tensor loss = accelerator.train_batch(
        model, std::pair(tokens, targets), scaled_loss,
        {.micro_batches = 2, .positions = divides_sequences ? positions : at::Tensor()});
    return {loss.item<double>() / loss_factor, 0};
  }
  const at::Tensor logits = divides_sequences ? model(tokens, positions) : model(tokens);
  at::Tensor loss = torch::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
  std::pair<double, double> losses(loss.item<double>(), 0);
  loss = loss * loss_factor;
  const at::Tensor of_routers = model->take_router_loss();
  if (of_routers.defined()) {
    losses.second = of_routers.item<double>();
    loss = loss + of_routers;
  }
  accelerator.backward(loss);
  return losses;
}

ExpertOutcome train_rank_with_experts(const ExpertTraining& training) {
  AcceleratorOptions given;
  if (training.sizes) given.parallelism_config = ParallelismConfig(*training.sizes);
  if (training.micro_steps > 1) given.gradient_accumulation_steps = training.micro_steps;
  training.change(given);
  Accelerator accelerator(given);
  lm::Lm made(training.config, lm::LmOptions{.activation_checkpointing = training.computes_again,
                                             .router = training.router});
  fill_experts_by_formula(*made, training.formula);
  training.change_model(*made);
  std::shared_ptr<torch::optim::Optimizer> chosen;
  if (training.optimizer) {
    chosen = training.optimizer(made->parameters());
  } else {
    chosen = std::make_shared<torch::optim::SGD>(made->parameters(),
                                                 torch::optim::SGDOptions(0.1).momentum(0.9));
  }
  auto [model, optimizer] = accelerator.prepare(made.ptr(), chosen);
  const auto state = internal::Access::to(model);
  ExpertOutcome outcome;
  for (const at::Tensor& parameter : model->parameters()) outcome.elements += parameter.numel();
  const DataShare share = accelerator.state().data_share();
  const int64_t own = training.rows / share.count / training.micro_steps;
  for (int step = 0; step < training.steps; ++step) {
    const auto [inputs, labels] =
        formula_batch(step, training.rows, training.config.sequence_length, training.formula);
    double total = 0, balance = 0;
    for (int micro = 0; micro < training.micro_steps; ++micro) {
      const int64_t first = (share.index * training.micro_steps + micro) * own;
      const auto scope = accelerator.accumulate(model);
      const auto [loss, of_routers] = run_pass(accelerator, model, inputs.narrow(0, first, own),
                                               labels.narrow(0, first, own), training.loss_factor);
      total += loss;
      balance += of_routers;
      if (step > 0 || micro > 0) continue;
      for (const auto& mixture : mixtures_of_blocks(*model)) {
        outcome.taken.push_back(mixture->taken());
        outcome.dropped.push_back(mixture->dropped());
      }
    }
    outcome.losses.push_back(total / training.micro_steps);
    outcome.balances.push_back(balance / training.micro_steps);
    if (training.look) training.look(*state, step);
    if (training.clips) {
      const at::Tensor norm = accelerator.clip_grad_norm_(model->parameters(), 1.0);
      outcome.norms.push_back(norm.item<double>());
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  if (training.look) training.look(*state, -1);
  return outcome;
}

ExpertOutcome train_experts(const ExpertTraining& training) {
  ClusterOptions options;
  options.seed = training.seed;
  options.record = true;
  options.numerics = training.numerics;
  if (training.numerics == simulator::Numerics::kShapes) {
    options.unknown_value = [](const std::string&) { return std::nan(""); };
  }
  Cluster cluster(training.cluster, options);
  ExpertOutcome outcome;
  cluster.run_on_every_rank([&](Rank& rank) {
    ExpertOutcome own = train_rank_with_experts(training);
    rank.report("losses", torch::tensor(own.losses, torch::kDouble));
    rank.report("balances", torch::tensor(own.balances, torch::kDouble));
    rank.report("norms", torch::tensor(own.norms, torch::kDouble));
    if (rank.index() == 0) outcome = std::move(own);
  });
  const auto mean = [&cluster](const std::string& name) {
    const at::Tensor values = torch::stack(cluster.reports(name)).mean(0);
    return std::vector<double>(values.const_data_ptr<double>(),
                               values.const_data_ptr<double>() + values.numel());
  };
  outcome.losses = mean("losses");
  outcome.balances = mean("balances");
  outcome.norms = mean("norms");
  const std::vector<at::Tensor> norms = cluster.reports("norms");
  for (size_t rank = 1; rank < norms.size(); ++rank) {
    EXPECT_TRUE(torch::equal(norms[rank], norms[0])) << "rank " << rank << " has other norms";
  }
  outcome.elapsed = cluster.elapsed();
  const simulator::Trace& trace = cluster.trace();
  for (const simulator::Traffic& pair : trace.communication) {
    const std::string axis = pair.axis < 0 ? "" : trace.axes[static_cast<size_t>(pair.axis)].name;
    outcome.bytes[axis] += pair.bytes;
  }
  return outcome;
}

}  // namespace accelerate
