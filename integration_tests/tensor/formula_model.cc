#include "integration_tests/tensor/formula_model.h"

#include <cstddef>
#include <string_view>

#include <c10/util/accumulate.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "simulator/trace/trace.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Rank;

constexpr std::string_view kText =
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age "
    "of foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the "
    "season "
    "of Light, it was the season of Darkness, it was the spring of hope, it was the winter of "
    "despair. ";

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

at::Tensor values(const std::string& name, at::IntArrayRef shape) {
  double base = 0, scale = 1.0 / 16;
  if (shape.size() == 1) {
    const bool is_bias = name.ends_with("bias");
    base = is_bias ? 0 : 1;
    scale = is_bias ? 1.0 / 64 : 1.0 / 8;
  }
  std::vector<float> elements(static_cast<size_t>(c10::multiply_integers(shape)));
  const uint64_t seed = fnv1a64(name);
  for (size_t i = 0; i < elements.size(); ++i) {
    const double u = static_cast<double>(splitmix64(seed + i) >> 40) / (1 << 24);
    elements[i] = static_cast<float>(base + (u - 0.5) * scale);
  }
  return torch::tensor(elements).view(shape);
}

}  // namespace

void fill_by_formula(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    item.value().copy_(values(item.key(), item.value().sizes()));
  }
}

std::pair<at::Tensor, at::Tensor> formula_batch(int step, int64_t rows, int64_t length) {
  std::vector<int64_t> tokens(static_cast<size_t>(rows * (length + 1)));
  const size_t begin = static_cast<size_t>(step) * tokens.size();
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<unsigned char>(kText[(begin + i) % kText.size()]);
  }
  const at::Tensor all = torch::tensor(tokens).view({rows, length + 1});
  return {all.narrow(1, 0, length).contiguous(), all.narrow(1, 1, length).contiguous()};
}

FormulaOutcome train_by_formula(const FormulaTraining& training) {
  ClusterOptions options;
  options.record = true;
  Cluster cluster(training.cluster, options);
  cluster.run_on_every_rank([&](Rank& rank) {
    AcceleratorOptions given;
    if (training.sizes) given.parallelism_config = ParallelismConfig(*training.sizes);
    if (training.micro_steps > 1) given.gradient_accumulation_steps = training.micro_steps;
    training.change(given);
    Accelerator accelerator(given);
    lm::Lm made(training.config, training.lm);
    fill_by_formula(*made);
    const std::shared_ptr<torch::optim::Optimizer> sgd = std::make_shared<torch::optim::SGD>(
        made->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto [model, optimizer] = accelerator.prepare(made.ptr(), sgd);
    int64_t elements = 0;
    for (const at::Tensor& parameter : model->parameters()) elements += parameter.numel();
    rank.report("elements", static_cast<double>(elements));
    const DataShare share = accelerator.state().data_share();
    const int64_t own = training.rows / share.count / training.micro_steps;
    for (int step = 0; step < training.steps; ++step) {
      auto [inputs, labels] = formula_batch(step, training.rows, training.config.sequence_length);
      double total = 0;
      for (int micro = 0; micro < training.micro_steps; ++micro) {
        const int64_t first = (share.index * training.micro_steps + micro) * own;
        const auto part = [&](const at::Tensor& all) {
          return all.narrow(0, first, own).to(accelerator.device());
        };
        const auto scope = accelerator.accumulate(model);
        const at::Tensor logits = model(part(inputs));
        const at::Tensor flat = logits.flatten(0, 1), targets = part(labels).flatten();
        const at::Tensor loss = training.parallel_loss
                                    ? parallel_cross_entropy(model, flat, targets)
                                    : torch::cross_entropy_loss(flat, targets);
        total += loss.item<double>();
        accelerator.backward(loss);
      }
      rank.report(absl::StrCat("loss ", step), total / training.micro_steps);
      if (training.clip_value > 0) {
        accelerator.clip_grad_value_(model->parameters(), training.clip_value);
      }
      if (training.clips) {
        const at::Tensor norm = accelerator.clip_grad_norm_(model->parameters(), 1.0);
        rank.report(absl::StrCat("norm ", step), norm.item<double>());
      }
      optimizer.step();
      optimizer.zero_grad();
    }
  });
  FormulaOutcome outcome;
  const auto mean = [&cluster](const std::string& name) {
    return torch::stack(cluster.reports(name)).to(torch::kDouble).mean().item<double>();
  };
  for (int step = 0; step < training.steps; ++step) {
    outcome.losses.push_back(mean(absl::StrCat("loss ", step)));
    if (training.clips) outcome.norms.push_back(mean(absl::StrCat("norm ", step)));
  }
  outcome.elements = static_cast<int64_t>(cluster.reports("elements").front().item<double>());
  for (const simulator::Traffic& pair : cluster.trace().communication) outcome.bytes += pair.bytes;
  return outcome;
}

}  // namespace accelerate
