#include "integration_tests/lm/held_bytes.h"

#include <cstddef>
#include <vector>

#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/operators/default_device.h"
#include "accelerate/optim/fused_optimizers.h"

namespace accelerate {
namespace {

using simulator::MemoryCategory;

constexpr int64_t kBlock = 512;

int64_t block_bytes(int64_t elements) {
  constexpr int64_t kFloatBytes = 4;
  return (elements * kFloatBytes + kBlock - 1) / kBlock * kBlock;
}

int64_t held(simulator::Rank& rank, MemoryCategory category) {
  return rank.device()->memory().by_category()[static_cast<size_t>(category)];
}

}  // namespace

HeldBytes formula(const lm::Config& config) {
  const bool gpt = config.blocks == lm::Blocks::kGpt;
  const int64_t h = config.hidden, i = config.intermediate;
  const int64_t qkv = (config.heads + 2 * config.kv_heads) * (h / config.heads);
  // Two norms, the attention and the perceptron.
  std::vector<int64_t> block = {h, h, qkv * h, h * h, i * h, h * i};
  if (gpt) {
    block.insert(block.end(), {h, h, qkv, h, i, h});  // their biases
  } else {
    block.push_back(i * h);  // the gate
  }
  int64_t bytes = 0;
  for (const int64_t elements : block) bytes += config.layers * block_bytes(elements);
  bytes += block_bytes(config.vocabulary * h) + block_bytes(h);
  if (gpt) bytes += block_bytes(config.sequence_length * h) + block_bytes(h);
  if (config.tied_head == 0) bytes += block_bytes(config.vocabulary * h);
  return {.parameters = bytes, .gradients = bytes, .optimizer_state = 2 * bytes + kBlock};
}

HeldBytes measured(simulator::Rank& rank, const lm::Config& config, PrecisionType precision) {
  Accelerator accelerator(
      {.mixed_precision = precision,
       .kwargs_handlers = {DistributedDataParallelKwargs{.gradient_as_bucket_view = true}}});
  set_seed(1);
  lm::Lm net = [&] {
    const DefaultDeviceScope scope(accelerator.device());
    return lm::Lm(config, /*activation_checkpointing=*/true);
  }();
  optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const torch::Tensor tokens =
      torch::zeros({1, config.sequence_length}, torch::kLong).to(accelerator.device());
  const torch::Tensor logits = model(tokens);
  accelerator.backward(at::cross_entropy_loss(logits.flatten(0, 1), tokens.flatten()));
  HeldBytes bytes{
      .parameters = held(rank, MemoryCategory::kParameters),
      .gradients = held(rank, MemoryCategory::kGradients) + held(rank, MemoryCategory::kBuckets)};
  optimizer.step();
  bytes.optimizer_state = held(rank, MemoryCategory::kOptimizerState);
  return bytes;
}

}  // namespace accelerate
