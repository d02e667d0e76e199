// What devices hold of a training's states is what its layout says, to the byte, and of its
// activations what `accelerate plan` says: layouts of each axis, on clusters of their shapes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "accelerate/accelerate.h"
#include "accelerate/base/access.h"
#include "accelerate/base/rank_layout.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/layout_plan.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/layout/placement.h"
#include "integration_tests/composition/drawn_layout.h"
#include "integration_tests/experts/expert_training.h"
#include "integration_tests/tensor/formula_model.h"
#include "simulator/cluster/cluster.h"
#include "simulator/trace/trace.h"

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

// The most that any rank holds of the activations of a step that is not the first, of so many rows
// for each share: the step of `accelerate plan`, with values and with all ranks and blocks.
int64_t activations_of(const DrawnLayout& layout, const lm::Config& config, int64_t rows,
                       int micro_batches) {
  const RankLayout& ranks = layout.ranks;
  Cluster cluster(layout.cluster(), {.record = true});
  std::vector<int64_t> begins(static_cast<size_t>(ranks.num_ranks()));
  cluster.run_on_every_rank([&](Rank& rank) {
    AcceleratorOptions options;
    options.parallelism_config = ParallelismConfig(*sizes_of(ranks));
    if (ranks.tp > 1) with_modes({.parallel_loss = true}, config)(options);
    Accelerator accelerator(options);
    // Learned routers have as many rows on a rank as they choose, and not what a plan can tell.
    lm::Lm net(config, lm::LmOptions{.shares_key_heads = ranks.cp > 1,
                                     .router = {.routing = Routing::kBalanced}});
    const std::shared_ptr<torch::optim::Optimizer> adamw =
        std::make_shared<optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(1e-3));
    auto [prepared, optimizer] = accelerator.prepare(net.ptr(), adamw);
    auto& model = prepared;
    const at::Tensor tokens =
        at::zeros({rows, config.sequence_length}, at::kLong).to(accelerator.device());
    const at::Tensor labels = tokens.clone();
    const at::Tensor positions = at::arange(config.sequence_length, tokens.options());
    const auto loss_of = [&](const at::Tensor& output, const at::Tensor& of_rows) {
      const at::Tensor logits = output.flatten(0, 1), targets = of_rows.flatten();
      return ranks.tp > 1 ? parallel_cross_entropy(model, logits, targets)
                          : at::cross_entropy_loss(logits, targets);
    };
    for (int step = 0; step < 2; ++step) {
      begins[static_cast<size_t>(rank.index())] = rank.device()->host_ns();
      const auto parts = accelerator.maybe_context_parallel({tokens, labels, positions}, {1, 1, 0});
      if (ranks.pp > 1) {
        accelerator.train_batch(model, std::pair(tokens, labels), loss_of,
                                {.micro_batches = micro_batches});
      } else {
        accelerator.backward(
            loss_of(ranks.cp > 1 ? model(tokens, positions) : model(tokens), labels));
      }
      optimizer.step();
      optimizer.zero_grad();
    }
  });
  int64_t most = 0;
  for (const simulator::MemorySample& sample : cluster.trace().memory) {
    if (sample.at_ns < begins[static_cast<size_t>(sample.rank)]) continue;
    most = std::max(most, sample.bytes[static_cast<size_t>(MemoryCategory::kActivations)]);
  }
  return most;
}

// A plan follows from few of the twelve blocks, with shapes alone on a folded cluster.
TEST(MemoryOfActivations, IsThatOfThePlanWithinOnePerCent) {
  constexpr int64_t kRowsOfPass = 4;
  for (const RankLayout& ranks : layouts()) {
    const DrawnLayout layout{.ranks = ranks};
    SCOPED_TRACE(layout.text());
    lm::Config config = model_of(layout);
    config.layers = 12;
    const int micro_batches = ranks.pp > 1 ? 4 : 1;
    const int64_t rows = kRowsOfPass * micro_batches;
    const lm::PlannedLayout planned =
        lm::planned({.config = config,
                     .cluster = layout.cluster(),
                     .batch_size = rows * ranks.dp_replicate * ranks.dp_shard,
                     .micro_batch_size = kRowsOfPass,
                     .mixed_precision = "no"},
                    {.ranks = ranks});
    ASSERT_TRUE(planned.fits) << planned.why;
    const auto executed = static_cast<double>(activations_of(layout, config, rows, micro_batches));
    // Each block keeps more than the results of its two norms.
    const int64_t blocks_of_rank = config.layers / ranks.pp;
    const int64_t tokens_of_rank = kRowsOfPass * config.sequence_length / ranks.cp;
    EXPECT_GT(executed,
              static_cast<double>(blocks_of_rank * tokens_of_rank * config.hidden * 2 * 4));
    EXPECT_NEAR(static_cast<double>(planned.activations), executed, 0.01 * executed);
  }
}

}  // namespace
}  // namespace accelerate
