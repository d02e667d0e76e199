// A gradient that overflows on one rank, in whatever part of the model or of the data: no rank of
// the job takes the step, and all take the next one.
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "accelerate/accelerate.h"
#include "accelerate/base/rank_layout.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/runtime/runtime.h"
#include "integration_tests/composition/drawn_layout.h"
#include "integration_tests/experts/expert_training.h"

namespace accelerate {
namespace {

// Each axis, and each way to divide a model.
std::vector<RankLayout> layouts() {
  return {{.dp_replicate = 2, .tp = 2},
          {.dp_replicate = 2, .dp_shard = 2},
          {.dp_shard = 2, .cp = 2},
          {.dp_replicate = 2, .sp = 2},
          {.pp = 2, .dp_shard = 2},
          {.dp_shard = 2, .tp = 2, .ep = 2, .experts = true},
          {.pp = 2, .dp_shard = 2, .ep = 2, .experts = true}};
}

at::Tensor weights_of(const ModelState& state) {
  std::vector<at::Tensor> all;
  for (const TrainedParameter& each : state.trained()) {
    all.push_back(each.trained.detach().flatten().cpu());
  }
  return at::cat(all);
}

// Makes infinite the gradient of one tensor that the rank trains, whose name has the text. Returns
// whether there is one.
bool overflow(const ModelState& state, const std::string& text) {
  for (const TrainedParameter& each : state.trained()) {
    const at::Tensor& gradient = each.trained.grad();
    if (!absl::StrContains(each.name, text) || !gradient.defined()) continue;
    gradient.fill_(std::numeric_limits<float>::infinity());
    return gradient.numel() > 0;
  }
  return false;
}

TEST(AnOverflowOfOneRank, IsASkippedStepOfAll) {
  for (const RankLayout& ranks : layouts()) {
    const DrawnLayout layout{.ranks = ranks, .precision = PrecisionType::kFp16};
    SCOPED_TRACE(layout.text());
    EXPECT_FALSE(find_illegal(ranks));
    const auto count = static_cast<size_t>(ranks.num_ranks());
    // By rank: when the gradients of each of three steps are there, and at the end.
    std::vector<std::vector<at::Tensor>> weights(count);
    bool overflows = false;
    ExpertTraining training = training_of(layout);
    training.clips = false;
    training.change = [layout](AcceleratorOptions& options) {
      add_techniques(layout, options);
      options.kwargs_handlers.emplace_back(GradScalerKwargs{.init_scale = 256});
    };
    training.look = [&](const ModelState& state, int step) {
      const auto rank = static_cast<size_t>(Runtime::current().topology().rank);
      weights[rank].push_back(weights_of(state));
      if (step != 1 || rank + 1 != count) return;
      overflows = overflow(state, ranks.experts ? "experts.up" : "mlp.up");
    };
    train_experts(training);
    EXPECT_TRUE(overflows);
    for (size_t rank = 0; rank < count; ++rank) {
      const std::vector<at::Tensor>& own = weights[rank];
      ASSERT_EQ(own.size(), 4);
      EXPECT_FALSE(at::equal(own[0], own[1])) << "rank " << rank;
      EXPECT_TRUE(at::equal(own[1], own[2])) << "rank " << rank;
      EXPECT_FALSE(at::equal(own[2], own[3])) << "rank " << rank;
    }
  }
}

}  // namespace
}  // namespace accelerate
