// Random ways to divide a training compute what one process computes, and twice the same bits. Each
// seed is a test; ACCELERATE_RANDOM_LAYOUTS says how many there are, and ACCELERATE_FIRST_LAYOUT
// the first of them: ci/layouts.sh takes more.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/runtime/runtime.h"
#include "integration_tests/composition/drawn_layout.h"
#include "integration_tests/experts/expert_training.h"

namespace accelerate {
namespace {

uint64_t variable(const char* name, uint64_t usual) {
  const char* const text = std::getenv(name);
  uint64_t number = usual;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : usual;
}

// What all ranks have at the end, too.
struct Trained {
  ExpertOutcome outcome;
  std::vector<std::vector<at::Tensor>> weights;  // by rank
};

Trained train(const DrawnLayout& layout, uint64_t seed_of_cluster) {
  Trained trained;
  trained.weights.resize(static_cast<size_t>(layout.ranks.num_ranks()));
  ExpertTraining training = training_of(layout);
  training.seed = seed_of_cluster;
  training.look = [&trained](const ModelState& state, int step) {
    if (step != -1) return;
    auto& own = trained.weights[static_cast<size_t>(Runtime::current().topology().rank)];
    for (const TrainedParameter& each : state.trained()) {
      own.push_back(each.trained.detach().cpu().clone());
    }
  };
  trained.outcome = train_experts(training);
  return trained;
}

// The same for all layouts of a kind.
const ExpertOutcome& outcome_of_one(const DrawnLayout& layout) {
  static std::map<std::string, ExpertOutcome>& known = *new std::map<std::string, ExpertOutcome>;
  const DrawnLayout one = one_rank_of(layout);
  const auto [entry, is_new] = known.try_emplace(one.text());
  if (is_new) entry->second = train(one, 0).outcome;
  return entry->second;
}

void expect_near(const char* what, const std::vector<double>& actual,
                 const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], tolerance * expected[i]) << what << " of step " << i;
  }
}

void expect_same_bits(const Trained& a, const Trained& b) {
  EXPECT_EQ(a.outcome.losses, b.outcome.losses);
  EXPECT_EQ(a.outcome.norms, b.outcome.norms);
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (size_t rank = 0; rank < a.weights.size(); ++rank) {
    ASSERT_EQ(a.weights[rank].size(), b.weights[rank].size());
    EXPECT_FALSE(a.weights[rank].empty());
    for (size_t i = 0; i < a.weights[rank].size(); ++i) {
      EXPECT_TRUE(at::equal(a.weights[rank][i], b.weights[rank][i]))
          << "parameter " << i << " of rank " << rank;
    }
  }
}

class RandomLayout : public ::testing::TestWithParam<uint64_t> {};

TEST_P(RandomLayout, TrainsAsOneProcess) {
  const DrawnLayout layout = draw_layout(GetParam());
  SCOPED_TRACE(absl::StrCat(layout.text(), "; repeat with ACCELERATE_FIRST_LAYOUT=", GetParam(),
                            " ACCELERATE_RANDOM_LAYOUTS=1"));
  const ExpertOutcome& one = outcome_of_one(layout);
  const Trained first = train(layout, /*seed_of_cluster=*/0);
  // Half precision rounds parts of sums, and under FSDP losses themselves to 8 bits.
  const bool is_half = layout.precision.has_value();
  const double of_losses = !is_half ? 1e-6 : layout.ranks.fsdp ? 8e-3 : 5e-3;
  expect_near("loss", first.outcome.losses, one.losses, of_losses);
  expect_near("norm", first.outcome.norms, one.norms, is_half ? 5e-2 : 1e-5);
  // Ranks take turns in another order.
  expect_same_bits(first, train(layout, /*seed_of_cluster=*/1));
}

INSTANTIATE_TEST_SUITE_P(Seed, RandomLayout,
                         ::testing::Range(variable("ACCELERATE_FIRST_LAYOUT", 0),
                                          variable("ACCELERATE_FIRST_LAYOUT", 0) +
                                              variable("ACCELERATE_RANDOM_LAYOUTS", 20)));

// Replicas of shards add up what they have of a window when it ends, and not before.
TEST(ReplicasOfShards, AccumulateBesidePartsOfLayersAndStages) {
  for (const RankLayout& ranks :
       {RankLayout{.dp_replicate = 2, .dp_shard = 2, .tp = 2},
        RankLayout{.pp = 2, .dp_replicate = 2, .dp_shard = 2},
        RankLayout{.dp_replicate = 2, .dp_shard = 2, .ep = 2, .experts = true}}) {
    const DrawnLayout layout{.ranks = ranks, .micro_steps = 2};
    SCOPED_TRACE(layout.text());
    const ExpertOutcome& one = outcome_of_one(layout);
    const Trained trained = train(layout, /*seed_of_cluster=*/0);
    expect_near("loss", trained.outcome.losses, one.losses, 1e-6);
    expect_near("norm", trained.outcome.norms, one.norms, 1e-5);
  }
}

// So that a test of 20 is one of all techniques.
TEST(DrawnLayouts, OfTheFirst20SeedsHaveEachTechnique) {
  std::map<std::string, int> seen;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const DrawnLayout layout = draw_layout(seed);
    EXPECT_FALSE(find_illegal(layout.ranks)) << layout.text();
    seen["ranks"] += layout.ranks.num_ranks() == 16 ? 1 : 0;
    seen["dp_replicate"] += layout.ranks.dp_replicate > 1 ? 1 : 0;
    seen["dp_shard"] += layout.ranks.dp_shard > 1 ? 1 : 0;
    seen["pp"] += layout.ranks.pp > 1 ? 1 : 0;
    seen["cp"] += layout.ranks.cp > 1 ? 1 : 0;
    seen["sp"] += layout.ranks.sp > 1 ? 1 : 0;
    seen["tp"] += layout.ranks.tp > 1 ? 1 : 0;
    seen["ep"] += layout.ranks.ep > 1 ? 1 : 0;
    seen["FSDP"] += layout.ranks.fsdp ? 1 : 0;
    seen["ZeRO"] += layout.ranks.zero ? 1 : 0;
    seen["sequence shards"] += layout.ranks.sequence_shards ? 1 : 0;
    seen["accumulation"] += layout.micro_steps > 1 ? 1 : 0;
    seen["recomputation"] += layout.recomputes ? 1 : 0;
    seen["bf16"] += layout.precision ? 1 : 0;
    seen["GPT"] += layout.blocks == lm::Blocks::kGpt ? 1 : 0;
    seen["two nodes"] += layout.nodes == 2 ? 1 : 0;
  }
  EXPECT_EQ(seen.size(), 16);
  for (const auto& [technique, count] : seen) EXPECT_GT(count, 0) << technique;
}

}  // namespace
}  // namespace accelerate
