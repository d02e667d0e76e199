#include "integration_tests/pipeline/small_pipeline.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;
using torch::Tensor;

// The sum over the tokens whose label is not 0.
TokenLoss token_loss(const Tensor& output, const Tensor& labels) {
  const Tensor losses =
      torch::cross_entropy_loss(output.flatten(0, 1), labels.flatten(), {}, at::Reduction::None);
  const Tensor counts = labels.flatten().ne(0);
  return {.sum = (losses * counts).sum(), .tokens = counts.sum().item<int64_t>()};
}

int64_t ranks_of(const ParallelismOptions& sizes) {
  return sizes.pp_size.value_or(1) * sizes.dp_replicate_size.value_or(1) *
         sizes.dp_shard_size.value_or(1) * sizes.tp_size.value_or(1);
}

SmallOutcome train_rank(const SmallTraining& training) {
  AcceleratorOptions options = with_stages(training.sizes, training.plan);
  if (training.accumulation > 1) options.gradient_accumulation_steps = training.accumulation;
  Accelerator accelerator(options);
  torch::nn::Sequential made = small_sequential();
  training.change(*made);
  const std::shared_ptr<torch::optim::Optimizer> sgd = std::make_shared<torch::optim::SGD>(
      made->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(made.ptr(), sgd);
  const DataShare share = accelerator.state().data_share();
  SmallOutcome outcome;
  for (size_t step = 0; step < training.windows.size(); ++step) {
    const auto [rows, length] = training.batches[std::min(step, training.batches.size() - 1)];
    const auto [inputs, labels] = small_batch(rows, length, static_cast<int>(step));
    const int64_t own = rows / share.count / training.accumulation;
    double loss = 0;
    for (int micro = 0; micro < training.accumulation; ++micro) {
      const int64_t first = (share.index * training.accumulation + micro) * own;
      const auto batch = std::pair(inputs.narrow(0, first, own).to(accelerator.device()),
                                   labels.narrow(0, first, own).to(accelerator.device()));
      const auto scope = accelerator.accumulate(model);
      const Tensor own_loss =
          training.by_tokens
              ? accelerator.train_batch(model, batch, &token_loss, training.windows[step])
              : accelerator.train_batch(model, batch, &small_loss, training.windows[step]);
      loss += own_loss.item<double>();
    }
    outcome.losses.push_back(loss / training.accumulation);
    outcome.norms.push_back(accelerator.clip_grad_norm_(model->parameters(), 0.5).item<double>());
    optimizer.step();
    optimizer.zero_grad();
  }
  return outcome;
}

}  // namespace

torch::nn::Sequential small_sequential() {
  torch::manual_seed(5);
  torch::nn::Sequential layers;
  layers->push_back("first", torch::nn::Linear(8, 16));
  layers->push_back(torch::nn::Tanh());
  for (int i = 0; i < 2; ++i) {
    layers->push_back(torch::nn::Linear(16, 16));
    layers->push_back(torch::nn::Tanh());
  }
  layers->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})));
  layers->push_back("last", torch::nn::Linear(16, 3));
  return layers;
}

std::pair<Tensor, Tensor> small_batch(int64_t rows, int64_t length, int step) {
  const Tensor numbers = torch::arange(rows * length * 8, torch::kFloat) + 31 * step;
  const Tensor labels = torch::arange(rows * length, torch::kLong);
  return {(numbers * 0.7).sin().view({rows, length, 8}),
          (labels.div(length, "floor") + labels * labels + step).remainder(3).view({rows, length})};
}

Tensor small_loss(const Tensor& output, const Tensor& labels) {
  return torch::cross_entropy_loss(output.flatten(0, 1), labels.flatten());
}

AcceleratorOptions with_stages(const ParallelismOptions& sizes, const PipelinePlan& plan) {
  return {.parallelism_config = ParallelismConfig(sizes), .kwargs_handlers = {plan}};
}

SmallOutcome train_small(const SmallTraining& training) {
  Cluster cluster(absl::StrCat("1x", ranks_of(training.sizes), ":h100"), {.seed = training.seed});
  cluster.run_on_every_rank([&](Rank& rank) {
    const SmallOutcome own = train_rank(training);
    rank.report("losses", torch::tensor(own.losses, torch::kDouble));
    rank.report("norms", torch::tensor(own.norms, torch::kDouble));
  });
  const std::vector<Tensor> norms = cluster.reports("norms");
  for (const Tensor& each : norms) {
    TORCH_CHECK(each.equal(norms[0]), "ranks have the norms ", norms[0], " and ", each);
  }
  const auto numbers = [](const Tensor& values) {
    return std::vector<double>(values.const_data_ptr<double>(),
                               values.const_data_ptr<double>() + values.numel());
  };
  return {.losses = numbers(torch::stack(cluster.reports("losses")).mean(0)),
          .norms = numbers(norms[0])};
}

}  // namespace accelerate
