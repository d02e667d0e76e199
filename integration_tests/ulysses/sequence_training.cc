#include "integration_tests/ulysses/sequence_training.h"

#include <memory>
#include <utility>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include "accelerate/accelerate.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "integration_tests/tensor/formula_model.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

constexpr int64_t kNoLabel = -100;
constexpr char kFolder[] = "/sim/run";

// The labels of a step, some of them taken away.
at::Tensor with_fewer_labels(const at::Tensor& labels,
                             const std::function<bool(int64_t, int64_t)>& has_label) {
  if (has_label == nullptr) return labels;
  at::Tensor fewer = labels.clone();
  for (int64_t row = 0; row < labels.size(0); ++row) {
    for (int64_t token = 0; token < labels.size(1); ++token) {
      if (!has_label(row, token)) fewer[row][token] = kNoLabel;
    }
  }
  return fewer;
}

at::Tensor sum_of_losses(const at::Tensor& logits, const at::Tensor& labels) {
  return torch::nn::functional::cross_entropy(
      logits.flatten(0, 1), labels.flatten(),
      torch::nn::functional::CrossEntropyFuncOptions().ignore_index(kNoLabel).reduction(
          torch::kSum));
}

at::Tensor mean_loss(const at::Tensor& logits, const at::Tensor& labels) {
  return torch::nn::functional::cross_entropy(
      logits.flatten(0, 1), labels.flatten(),
      torch::nn::functional::CrossEntropyFuncOptions().ignore_index(kNoLabel));
}

}  // namespace

std::function<void(AcceleratorOptions&)> with_zero(int stage, int micro_batch) {
  return [=](AcceleratorOptions& options) {
    nlohmann::ordered_json of_stage = {{"stage", stage}};
    if (stage == 3) of_stage["stage3_param_persistence_threshold"] = 200;
    const nlohmann::ordered_json config = {{"train_micro_batch_size_per_gpu", micro_batch},
                                           {"gradient_accumulation_steps", 1},
                                           {"gradient_clipping", 1.0},
                                           {"zero_allow_untested_optimizer", true},
                                           {"zero_optimization", of_stage}};
    options.deepspeed_plugin = DeepSpeedPlugin{.hf_ds_config = config};
  };
}

TokenShare train_rank_of_sequences(const SequenceTraining& training) {
  const int64_t length = training.config.sequence_length;
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
  const DeviceMesh* const mesh = accelerator.torch_device_mesh();
  const int64_t ranks = mesh != nullptr ? mesh->size(MeshAxis::kSp) : 1;
  const int64_t index = mesh != nullptr ? mesh->coordinate(MeshAxis::kSp) : 0;
  const int64_t tokens = length / ranks;
  const DataShare share = accelerator.state().data_share();
  const int64_t own = training.rows / share.count / training.micro_steps;
  const auto to_device = [&](const at::Tensor& part) { return part.to(accelerator.device()); };
  const at::Tensor positions =
      to_device(torch::arange(length, torch::kLong).narrow(0, index * tokens, tokens));
  TokenShare outcome;
  if (training.first_step > 0) accelerator.load_state(kFolder);
  for (int step = 0; step < training.steps; ++step) {
    auto [inputs, labels] = formula_batch(training.first_step + step, training.rows, length);
    labels = with_fewer_labels(labels, training.has_label);
    double loss_sum = 0;
    int64_t count = 0;
    for (int micro = 0; micro < training.micro_steps; ++micro) {
      const int64_t first = (share.index * training.micro_steps + micro) * own;
      const auto part = [&](const at::Tensor& all) {
        return to_device(all.narrow(0, first, own).narrow(1, index * tokens, tokens));
      };
      const auto scope = accelerator.accumulate(model);
      const at::Tensor logits = model(part(inputs), positions);
      const at::Tensor targets = part(labels);
      const at::Tensor valid = targets.ne(kNoLabel).sum();
      const at::Tensor sum = sum_of_losses(logits, targets);
      loss_sum += sum.item<double>();
      count += valid.item<int64_t>();
      if (training.has_label == nullptr) {
        accelerator.backward(mean_loss(logits, targets));
      } else if (training.weights_means) {
        accelerator.backward(accelerator.mean_over_sequences(mean_loss(logits, targets), valid));
      } else {
        accelerator.backward_tokens(sum, valid.item<int64_t>());
      }
    }
    outcome.losses.push_back(loss_sum);
    outcome.tokens.push_back(static_cast<double>(count));
    const at::Tensor norm = accelerator.clip_grad_norm_(model->parameters(), 1.0);
    outcome.norms.push_back(norm.item<double>());
    optimizer.step();
    optimizer.zero_grad();
  }
  if (training.saves) accelerator.save_state(kFolder);
  return outcome;
}

TokenOutcome train_sequences(const SequenceTraining& training) {
  simulator::Cluster cluster(training.cluster, {.disk = training.disk});
  return train_on_every_rank(cluster, [&] { return train_rank_of_sequences(training); });
}

}  // namespace accelerate
