#include "integration_tests/tensor/formula_model.h"

#include <cstddef>
#include <string_view>

#include <c10/util/accumulate.h>
#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/config/tensor_parallel_plan.h"
#include "simulator/trace/trace.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Rank;

uint64_t splitmix64(uint64_t state) {
  uint64_t mixed = state + 0x9E3779B97F4A7C15;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB;
  return mixed ^ (mixed >> 31);
}

uint64_t fnv1a64(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
  return hash;
}

}  // namespace

at::Tensor formula_values(const Formula& formula, const std::string& name, at::IntArrayRef shape) {
  double base = 0, scale = formula.matrix_scale;
  if (shape.size() == 1) {
    const bool is_bias = name.ends_with("bias");
    base = is_bias ? 0 : 1;
    scale = is_bias ? formula.bias_scale : formula.norm_scale;
  }
  std::vector<float> elements(static_cast<size_t>(c10::multiply_integers(shape)));
  const uint64_t seed = fnv1a64(name);
  for (size_t i = 0; i < elements.size(); ++i) {
    const double u = static_cast<double>(splitmix64(seed + i) >> 40) / (1 << 24);
    elements[i] = static_cast<float>(base + (u - 0.5) * scale);
  }
  return torch::tensor(elements).view(shape);
}

namespace {

at::Tensor mean_loss(const at::Tensor& logits, const at::Tensor& labels) {
  return torch::cross_entropy_loss(logits.flatten(0, 1), labels.flatten());
}

}  // namespace

void fill_by_formula(torch::nn::Module& module, const Formula& formula) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    item.value().copy_(formula_values(formula, item.key(), item.value().sizes()));
  }
}

std::pair<at::Tensor, at::Tensor> formula_batch(int step, int64_t rows, int64_t length,
                                                const Formula& formula) {
  const std::string& text = formula.text;
  std::vector<int64_t> tokens(static_cast<size_t>(rows * (length + 1)));
  const size_t begin = static_cast<size_t>(step) * tokens.size();
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<unsigned char>(text[(begin + i) % text.size()]);
  }
  const at::Tensor all = torch::tensor(tokens).view({rows, length + 1});
  return {all.narrow(1, 0, length).contiguous(), all.narrow(1, 1, length).contiguous()};
}

std::function<void(AcceleratorOptions&)> with_modes(const PlanModes& modes,
                                                    const lm::Config& config) {
  return [modes, config](AcceleratorOptions& options) {
    TensorParallelPlan plan = *lm::Lm(config)->tensor_parallel_plan();
    plan.sequence_parallel = modes.sequence_shards;
    plan.parallel_loss = modes.parallel_loss;
    plan.keep_gathered_inputs = modes.keeps_gathered_inputs;
    options.kwargs_handlers.emplace_back(plan);
  };
}

FormulaOutcome train_rank_by_formula(const FormulaTraining& training) {
  AcceleratorOptions given;
  if (training.sizes) given.parallelism_config = ParallelismConfig(*training.sizes);
  if (training.micro_steps > 1) given.gradient_accumulation_steps = training.micro_steps;
  training.change(given);
  Accelerator accelerator(given);
  lm::Lm made(training.config, training.lm);
  fill_by_formula(*made, training.formula);
  const std::shared_ptr<torch::optim::Optimizer> sgd = std::make_shared<torch::optim::SGD>(
      made->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(made.ptr(), sgd);
  FormulaOutcome outcome;
  for (const at::Tensor& parameter : model->parameters()) outcome.elements += parameter.numel();
  const DataShare share = accelerator.state().data_share();
  const bool divides_sequences = training.sizes && training.sizes->cp_size.value_or(1) > 1;
  const int64_t own = training.rows / share.count / training.micro_steps;
  for (int step = 0; step < training.steps; ++step) {
    const auto [inputs, labels] =
        formula_batch(step, training.rows, training.config.sequence_length, training.formula);
    double total = 0;
    for (int micro = 0; micro < training.micro_steps; ++micro) {
      const int64_t first = (share.index * training.micro_steps + micro) * own;
      const auto part = [&](const at::Tensor& all) {
        return all.narrow(0, first, own).to(accelerator.device());
      };
      const auto scope = accelerator.accumulate(model);
      if (training.window) {
        const at::Tensor tokens = part(inputs), targets = part(labels);
        TrainBatchOptions window = *training.window;
        std::optional<ContextParallelScope> context;
        if (divides_sequences) {
          window.positions = at::arange(tokens.size(1), tokens.options());
          context.emplace(
              accelerator.maybe_context_parallel({tokens, targets, window.positions}, {1, 1, 0}));
        }
        const at::Tensor loss =
            accelerator.train_batch(model, std::pair(tokens, targets), &mean_loss, window);
        total += loss.item<double>();
        continue;
      }
      const at::Tensor logits = model(part(inputs));
      const at::Tensor flat = logits.flatten(0, 1), targets = part(labels).flatten();
      const at::Tensor loss = training.parallel_loss ? parallel_cross_entropy(model, flat, targets)
                                                     : torch::cross_entropy_loss(flat, targets);
      total += loss.item<double>();
      accelerator.backward(loss);
    }
    outcome.losses.push_back(total / training.micro_steps);
    if (training.clip_value > 0) {
      accelerator.clip_grad_value_(model->parameters(), training.clip_value);
    }
    if (training.clips) {
      const at::Tensor norm = accelerator.clip_grad_norm_(model->parameters(), 1.0);
      outcome.norms.push_back(norm.item<double>());
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return outcome;
}

FormulaOutcome train_by_formula(const FormulaTraining& training) {
  ClusterOptions options;
  options.seed = training.seed;
  options.record = true;
  Cluster cluster(training.cluster, options);
  FormulaOutcome outcome;
  cluster.run_on_every_rank([&](Rank& rank) {
    const FormulaOutcome own = train_rank_by_formula(training);
    rank.report("losses", torch::tensor(own.losses, torch::kDouble));
    rank.report("norms", torch::tensor(own.norms, torch::kDouble));
    if (rank.index() == 0) outcome.elements = own.elements;
  });
  const auto mean = [&cluster](const std::string& name) {
    const at::Tensor values = torch::stack(cluster.reports(name)).mean(0);
    return std::vector<double>(values.const_data_ptr<double>(),
                               values.const_data_ptr<double>() + values.numel());
  };
  outcome.losses = mean("losses");
  outcome.norms = mean("norms");
  const simulator::Trace& trace = cluster.trace();
  for (const simulator::Traffic& pair : trace.communication) outcome.bytes += pair.bytes;
  for (const simulator::TraceOperation& each : trace.operations) {
    ++outcome.collectives[{trace.names[each.name], each.bytes}];
  }
  return outcome;
}

}  // namespace accelerate
