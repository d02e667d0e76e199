// What ranks along ep send each other for experts, to the byte, and that a fixed rule for the
// choice of experts needs no values, on clusters of that shape.
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "accelerate/config/parallelism_config.h"
#include "integration_tests/experts/expert_training.h"

namespace accelerate {
namespace {

// 512 tokens of 128 features for 2 of 8 experts: what leaves a rank in one direction where ep has
// two ranks, and where it has four. Bytes.
constexpr int64_t kOfTwo = 262'144;
constexpr int64_t kOfFour = 393'216;

// One layer; other axes than ep have groups of their own.
ExpertTraining balanced(int64_t ep) {
  ExpertTraining training = {.router = {.routing = Routing::kBalanced}, .clips = false};
  training.config =
      lm::model_config("tiny", {.blocks = lm::Blocks::kLlama, .layers = 1, .experts = 8});
  training.sizes = ParallelismOptions{.dp_shard_size = 2 * ep, .ep_size = ep};
  training.cluster = ep == 2 ? "1x4:h100" : "1x8:h100";
  training.rows = 4 * 2 * ep;
  return training;
}

// By all ranks, in one step more.
int64_t sent_in_a_step(ExpertTraining training) {
  training.steps = 1;
  const double one = train_experts(training).bytes["ep"];
  training.steps = 2;
  const double two = train_experts(training).bytes["ep"];
  return static_cast<int64_t>(two - one);
}

TEST(TrafficOfExperts, IsWhatOtherRanksExpertsTake) {
  // On four and on eight ranks, there and back, forward and backward.
  EXPECT_EQ(sent_in_a_step(balanced(2)), 4 * 4 * kOfTwo);
  EXPECT_EQ(sent_in_a_step(balanced(4)), 8 * 4 * kOfFour);
}

// The dispatch and the combine of the forward pass once more.
TEST(TrafficOfExperts, IsMoreWhereBlocksAreComputedAgain) {
  ExpertTraining training = balanced(2);
  training.computes_again = true;
  EXPECT_EQ(sent_in_a_step(training), 4 * 6 * kOfTwo);
}

// Beside rows of 512 bytes each rank sends 4 numbers of 8 bytes, of the rows that the other rank's
// experts get.
TEST(TrafficOfExperts, OfARouterHasItsCounts) {
  ExpertTraining training = balanced(2);
  training.router = {};
  EXPECT_EQ(sent_in_a_step(training) % 512, 4 * 4 * 8);
}

TEST(BalancedRouting, NeedsNoValues) {
  ExpertTraining training = balanced(2);
  training.steps = 2;
  const ExpertOutcome real = train_experts(training);
  training.numerics = simulator::Numerics::kShapes;
  const ExpertOutcome shapes = train_experts(training);
  EXPECT_EQ(real.taken,
            (std::vector<std::vector<int64_t>>{{128, 128, 128, 128, 128, 128, 128, 128}}));
  EXPECT_EQ(shapes.taken, real.taken);
  EXPECT_EQ(shapes.bytes, real.bytes);
  EXPECT_EQ(shapes.elapsed, real.elapsed);
}

// The slowest rank decides, which has more rows.
TEST(SkewedRouting, TakesLongerThanBalancedRouting) {
  const auto outcome = [](Routing routing) {
    ExpertTraining training = balanced(2);
    training.config = lm::model_config(
        "125m", {.blocks = lm::Blocks::kLlama, .layers = 1, .vocabulary = 256, .experts = 8});
    training.router = {.routing = routing, .skew = 4};
    training.steps = 2;
    training.numerics = simulator::Numerics::kShapes;
    return train_experts(training);
  };
  const ExpertOutcome skewed = outcome(Routing::kSkewed);
  EXPECT_EQ(skewed.taken[0][0], 4 * 2048) << "every token";
  EXPECT_GT(skewed.elapsed, outcome(Routing::kBalanced).elapsed);
}

}  // namespace
}  // namespace accelerate
