// The schedule of a simulated cluster must not reach the numbers: ten steps give the same bits for
// every seed and every run. `--runs_per_test=50` sweeps the seeds 1 to 50.
#include <vector>

#include <gtest/gtest.h>

#include "accelerate/examples/digits/training.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;

std::vector<double> ten_losses(Cluster& cluster) {
  std::vector<double> losses;
  cluster.run_on_every_rank([&](Rank& rank) {
    digits::Result result = digits::train(
        {.data = "accelerate/examples/digits/digits.csv.gz", .dropout = 0.2, .max_steps = 10});
    if (rank.index() == 0) losses = result.step_losses;
  });
  return losses;
}

TEST(DigitsDeterminism, RepeatsBitForBitAndUnderAnotherSchedule) {
  Cluster cluster = Cluster::from_test_env();
  const std::vector<double> losses = ten_losses(cluster);
  ASSERT_EQ(losses.size(), 10);
  EXPECT_EQ(losses, ten_losses(cluster));
  EXPECT_EQ(losses, ten_losses(cluster));
  Cluster other(cluster.spec().to_string(), {.seed = cluster.seed() + 1000});
  EXPECT_EQ(losses, ten_losses(other));
}

}  // namespace
}  // namespace accelerate
