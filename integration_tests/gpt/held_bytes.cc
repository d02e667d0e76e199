#include "integration_tests/gpt/held_bytes.h"

#include <cstddef>
#include <vector>

#include <torch/torch.h>

#include "accelerate/accelerate.h"
#include "accelerate/examples/gpt/model.h"
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

HeldBytes formula(const gpt::Shape& shape) {
  const int64_t w = shape.width;
  // The vectors of a block: weight and bias of two norms, and four biases.
  const std::vector<int64_t> block = {w,     w, w,         w,     3 * w * w, 3 * w,
                                      w * w, w, 4 * w * w, 4 * w, 4 * w * w, w};
  int64_t bytes = 0;
  for (const int64_t elements : block) bytes += shape.layers * block_bytes(elements);
  bytes += block_bytes(shape.vocabulary * w) + block_bytes(shape.context * w) + 2 * block_bytes(w);
  if (!shape.tied_head) bytes += block_bytes(shape.vocabulary * w);
  return {.parameters = bytes, .gradients = bytes, .optimizer_state = 2 * bytes + kBlock};
}

HeldBytes measured(simulator::Rank& rank, const gpt::Shape& shape, PrecisionType precision) {
  Accelerator accelerator(
      {.mixed_precision = precision,
       .kwargs_handlers = {DistributedDataParallelKwargs{.gradient_as_bucket_view = true}}});
  set_seed(1);
  gpt::Gpt net = [&] {
    const DefaultDeviceScope scope(accelerator.device());
    return gpt::Gpt(shape, /*activation_checkpointing=*/true);
  }();
  optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const torch::Tensor tokens =
      torch::zeros({1, shape.context}, torch::kLong).to(accelerator.device());
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
