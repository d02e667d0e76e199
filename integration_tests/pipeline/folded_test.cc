// Llama of 70 billion parameters on 1,024 devices: stages along pp 8, whose layers ranks of a node
// divide along tp 8 and whose rows 16 nodes divide. One rank of each stage is simulated, with
// shapes alone, and counts for all of its stage. The memory of each stage is that of its plan.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/base/access.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/config/pipeline_plan.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/examples/lm/model.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/operators/default_device.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/step/train_batch.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterOptions;
using simulator::Folding;
using simulator::MemoryCategory;
using simulator::Rank;
using torch::Tensor;

constexpr int kStages = 8, kNodesOfStage = 16, kDevices = 8;
constexpr int kMicroBatches = 8;

struct Bytes {
  int64_t planned = 0;  ///< of parameters, by the model's layout
  int64_t parameters = 0, gradients = 0, optimizer_state = 0;
};

lm::Lm made_empty(const lm::Config& config, c10::Device device) {
  const DefaultDeviceScope scope(device);
  const EmptyInit empty = init_empty_weights();
  return lm::Lm(config, lm::LmOptions{.activation_checkpointing = true});
}

int64_t held(Rank& rank, MemoryCategory category) {
  return rank.device()->memory().by_category()[static_cast<size_t>(category)];
}

// By the layout of the whole model, which every rank has.
int64_t planned_elements(const ModelLayout& layout, int rank) {
  int64_t elements = 0;
  for (const TensorPlacement& each : layout.placements()) {
    for (const PlacedBox& box : boxes_of(each, layout.mesh(), rank)) elements += box.part.numel();
  }
  return elements;
}

// The first two stages have 11 of the 82 parts and the others 10; the first part is the table, and
// the last one the head with its norm. 128 ranks divide what is cut along tp, and 16 the rows of
// the norms, of which a block has two.
int64_t elements_of_stage(int stage) {
  constexpr int64_t kBlock = 855'638'016 / 128 + 2 * 8'192 / 16;
  constexpr int64_t kTable = 32'000 * 8'192 / 128;
  if (stage == 0) return kTable + 10 * kBlock;
  if (stage == kStages - 1) return 9 * kBlock + kTable + 8'192 / 16;
  return (stage == 1 ? 11 : 10) * kBlock;
}

// One step of eight micro-batches of a sequence each, in bf16.
TEST(FoldedStages, HoldTheStatesOfTheirPlanToTheByte) {
  ClusterOptions options;
  options.numerics = simulator::Numerics::kShapes;
  options.unknown_value = [](const std::string&) { return std::nan(""); };
  options.fold = Folding{.spot_checks = 0,
                         .mesh = Mesh({.pp = kStages, .dp_shard = kNodesOfStage, .tp = kDevices})};
  Cluster cluster(absl::StrCat(kStages * kNodesOfStage, "x", kDevices, ":h100"), options);
  EXPECT_LE(cluster.executed().num_tasks(), 4 * kStages) << "ranks of one class run once";
  std::vector<Bytes> held_by(static_cast<size_t>(kStages * kNodesOfStage * kDevices));
  cluster.run_on_every_rank([&held_by](Rank& rank) {
    Accelerator accelerator(
        {.mixed_precision = PrecisionType::kBf16,
         .parallelism_config = ParallelismConfig(
             {.dp_shard_size = kNodesOfStage, .tp_size = kDevices, .pp_size = kStages}),
         .kwargs_handlers = {PipelinePlan{.micro_batches = kMicroBatches}}});
    const lm::Config config = lm::model_config("70b", {.blocks = lm::Blocks::kLlama});
    lm::Lm net = made_empty(config, accelerator.device());
    const std::shared_ptr<torch::optim::Optimizer> adamw =
        std::make_shared<optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(1e-3));
    auto [model, optimizer] = accelerator.prepare(net.ptr(), adamw);
    const Tensor tokens =
        at::zeros({kMicroBatches, config.sequence_length}, at::kLong).to(accelerator.device());
    accelerator.train_batch(
        model, std::pair(tokens, tokens), [](const Tensor& logits, const Tensor& labels) {
          return torch::cross_entropy_loss(logits.flatten(0, 1), labels.flatten());
        });
    optimizer.step();
    const ModelLayout& layout = *internal::Access::to(model)->placements().layout;
    held_by[static_cast<size_t>(rank.index())] = {
        .planned = 4 * planned_elements(layout, rank.index()),
        .parameters = held(rank, MemoryCategory::kParameters),
        .gradients = held(rank, MemoryCategory::kGradients),
        .optimizer_state = held(rank, MemoryCategory::kOptimizerState)};
  });
  for (int stage = 0; stage < kStages; ++stage) {
    SCOPED_TRACE(absl::StrCat("stage ", stage));
    // Its first rank, which is the lowest of its class.
    const Bytes& own = held_by[static_cast<size_t>(stage * kNodesOfStage * kDevices)];
    RecordProperty(absl::StrCat("bytes_of_stage_", stage),
                   absl::StrCat(own.parameters + own.gradients + own.optimizer_state));
    // Bytes of one number for each element; the parts of all tensors are multiples of 512 bytes.
    const int64_t bytes = 4 * elements_of_stage(stage);
    EXPECT_EQ(own.planned, bytes);
    EXPECT_EQ(own.parameters, bytes);
    EXPECT_EQ(own.gradients, bytes);
    // Two moments, and the counters of steps.
    EXPECT_GE(own.optimizer_state, 2 * bytes);
    EXPECT_LE(own.optimizer_state, 2 * bytes + 512);
  }
}

}  // namespace
}  // namespace accelerate
