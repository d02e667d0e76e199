// What devices hold of a training's states is what its layout says, to the byte: six layouts, on
// clusters of their shapes.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/base/access.h"
#include "accelerate/base/rank_layout.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/layout/placement.h"
#include "integration_tests/composition/drawn_layout.h"
#include "integration_tests/experts/expert_training.h"
#include "integration_tests/tensor/formula_model.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::MemoryCategory;
using simulator::Rank;

std::vector<RankLayout> layouts() {
  return {
      {.dp_shard = 4},
      {.dp_replicate = 2, .dp_shard = 2},
      {.dp_shard = 2, .tp = 2},
      {.dp_shard = 2, .cp = 2},
      {.pp = 2, .dp_shard = 2},
      {.dp_replicate = 2, .dp_shard = 2, .tp = 2, .ep = 2, .experts = true},
      {.pp = 2, .dp_shard = 2, .ep = 2, .experts = true},
  };
}

int64_t held(Rank& rank, MemoryCategory category) {
  return rank.device()->memory().by_category()[static_cast<size_t>(category)];
}

// A float32 number for each element of what the rank has, in blocks of 512 bytes, as the device's
// allocator has them.
int64_t bytes_of(const ModelPlacements& placements) {
  int64_t bytes = 0;
  for (const TensorPlacement& each : placements.layout->placements()) {
    int64_t elements = 0;
    for (const PlacedBox& box : boxes_of(each, placements.layout->mesh(), placements.rank)) {
      elements += box.part.numel();
    }
    bytes += (elements * 4 + 511) / 512 * 512;
  }
  return bytes;
}

TEST(MemoryOfStates, IsThatOfTheLayoutToTheByte) {
  for (const RankLayout& ranks : layouts()) {
    const DrawnLayout layout{.ranks = ranks};
    SCOPED_TRACE(layout.text());
    Cluster(layout.cluster()).run_on_every_rank([&](Rank& rank) {
      Accelerator accelerator({.parallelism_config = ParallelismConfig(*sizes_of(ranks))});
      lm::Lm net(model_of(layout), lm::LmOptions());
      const std::shared_ptr<torch::optim::Optimizer> adamw =
          std::make_shared<optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(1e-3));
      auto [model, optimizer] = accelerator.prepare(net.ptr(), adamw);
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        const auto [inputs, labels] =
            formula_batch(step, /*rows=*/2, model_of(layout).sequence_length);
        run_pass(accelerator, model, inputs, labels);
        optimizer.step();
      }
      const int64_t bytes = bytes_of(internal::Access::to(model)->placements());
      const std::string where = absl::StrCat("rank ", rank.index());
      EXPECT_GT(bytes, 0) << where;
      EXPECT_EQ(held(rank, MemoryCategory::kParameters), bytes) << where;
      EXPECT_EQ(held(rank, MemoryCategory::kGradients), bytes) << where;
      // Two moments, and the counter of steps.
      EXPECT_THAT(held(rank, MemoryCategory::kOptimizerState) - 2 * bytes, ::testing::AnyOf(0, 512))
          << where;
    });
  }
}

}  // namespace
}  // namespace accelerate
