// Llama of 70 billion parameters on 1,024 devices, as tp 8 in a node and dp_shard 128 over nodes.
// One rank is simulated, with shapes alone, and counts for all; the shape of the cluster is what
// the figures are of.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/accelerate.h"
#include "accelerate/base/access.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/operators/default_device.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "integration_tests/tensor/formula_model.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Folding;
using simulator::MemoryCategory;
using simulator::Rank;

constexpr int64_t kNodes = 128, kDevices = 8;

// In blocks of 512 bytes, as the device's allocator has them.
struct States {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer_state = 0;
};

struct Outcome {
  States held;
  int64_t elements = 0;      // of the first rank's, by its layout
  int64_t layout_bytes = 0;  // of one number for each
  std::string report;
};

lm::Lm made_empty(const lm::Config& config, c10::Device device) {
  const DefaultDeviceScope scope(device);
  const EmptyInit empty = init_empty_weights();
  return lm::Lm(config, lm::LmOptions{.activation_checkpointing = true});
}

int64_t held(Rank& rank, MemoryCategory category) {
  return rank.device()->memory().by_category()[static_cast<size_t>(category)];
}

void add_layout(const ModelLayout& layout, Outcome& outcome) {
  for (const TensorPlacement& each : layout.placements()) {
    int64_t elements = 0;
    for (const PlacedBox& box : boxes_of(each, layout.mesh(), /*rank=*/0)) {
      elements += box.part.numel();
    }
    outcome.elements += elements;
    outcome.layout_bytes += (elements * 4 + 511) / 512 * 512;
  }
}

// Two steps of one sequence a share, in bf16.
Outcome train(const std::function<void(AcceleratorOptions&)>& change, bool parallel_loss) {
  ClusterOptions options;
  options.numerics = simulator::Numerics::kShapes;
  options.unknown_value = [](const std::string&) { return std::nan(""); };
  options.fold = Folding{.spot_checks = 0, .mesh = Mesh({.dp_shard = kNodes, .tp = kDevices})};
  Cluster cluster("128x8:h100", options);
  EXPECT_LE(cluster.executed().num_tasks(), 4) << "ranks of one class run once";
  Outcome outcome;
  cluster.run_on_every_rank([&](Rank& rank) {
    AcceleratorOptions given{
        .mixed_precision = PrecisionType::kBf16,
        .parallelism_config = ParallelismConfig({.dp_shard_size = kNodes, .tp_size = kDevices})};
    change(given);
    Accelerator accelerator(given);
    const lm::Config config = lm::model_config("70b", {.blocks = lm::Blocks::kLlama});
    lm::Lm net = made_empty(config, accelerator.device());
    auto adamw =
        std::make_shared<optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(1e-3));
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    const at::Tensor tokens =
        at::zeros({1, config.sequence_length}, at::kLong).to(accelerator.device());
    for (int step = 0; step < 2; ++step) {
      const at::Tensor logits = model(tokens).flatten(0, 1), labels = tokens.flatten();
      accelerator.backward(parallel_loss ? parallel_cross_entropy(model, logits, labels)
                                         : torch::cross_entropy_loss(logits, labels));
      optimizer.step();
      if (step == 0) optimizer.zero_grad();
    }
    if (rank.index() != 0) return;
    outcome.held = {.parameters = held(rank, MemoryCategory::kParameters),
                    .gradients = held(rank, MemoryCategory::kGradients),
                    .optimizer_state = held(rank, MemoryCategory::kOptimizerState)};
    add_layout(*internal::Access::to(model)->placements().layout, outcome);
    outcome.report = layout_text(model);
  });
  return outcome;
}

void expect_states(const Outcome& outcome) {
  // A block's matrices are 855,638,016 elements, of which a rank has 1 / 1,024; its norms have 64
  // of 8,192 elements; the table and the head 32 of the 4,000 rows that ranks along tp have each.
  constexpr int64_t kElements = 80 * (855'638'016 / 1'024 + 2 * 64) + 64 + 2 * 32 * 8'192;
  static_assert(kElements == 67'381'312);
  // 64 elements take a block of 512 bytes all the same.
  constexpr int64_t kBytes = 4 * kElements + 161 * 256;
  EXPECT_EQ(outcome.elements, kElements);
  EXPECT_THAT(outcome.report, ::testing::HasSubstr("rank 0 has 67381312 of 68976648192 elements"));
  EXPECT_EQ(outcome.layout_bytes, kBytes);
  EXPECT_EQ(outcome.held.parameters, kBytes);
  EXPECT_EQ(outcome.held.gradients, kBytes);
  // Two moments, and the counters of steps.
  EXPECT_THAT(outcome.held.optimizer_state - 2 * kBytes, ::testing::AnyOf(0, 512));
}

TEST(FoldedLlama, HoldsTheStatesOfItsLayoutToTheByte) {
  expect_states(train([](AcceleratorOptions&) {}, /*parallel_loss=*/false));
}

TEST(FoldedLlama, HoldsTheSameWithSequenceShardsAndParallelLoss) {
  // The plan is that of the large model, which has as many heads of keys.
  const lm::Config small =
      lm::model_config("tiny", {.blocks = lm::Blocks::kLlama, .heads = 8, .kv_heads = 8});
  expect_states(train(with_modes({.sequence_shards = true, .parallel_loss = true}, small),
                      /*parallel_loss=*/true));
}

}  // namespace
}  // namespace accelerate
