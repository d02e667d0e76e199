// The schedule of a simulated cluster must not reach the numbers: ten steps give the same bits for
// every seed and every run.
#include <vector>

#include <gtest/gtest.h>

#include "accelerate/examples/digits/training.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::Rank;

std::vector<double> ten_losses(Cluster& cluster) {
  std::vector<double> losses;
  cluster.run_on_every_rank([&](Rank& rank) {
    digits::Result result = digits::train(
        {.data = "accelerate/examples/digits/digits.safetensors", .dropout = 0.2, .max_steps = 10});
    if (rank.index() == 0) losses = result.step_losses;
  });
  return losses;
}

TOPOLOGY_SUITE(DigitsDeterminism, .also = {"2x4", "2x4:h100"});

TEST_P(DigitsDeterminism, RepeatsBitForBitAndUnderAnotherSchedule) {
  Cluster cluster = make_cluster({.seed = 1});
  const std::vector<double> losses = ten_losses(cluster);
  ASSERT_EQ(losses.size(), 10);
  EXPECT_EQ(losses, ten_losses(cluster));
  EXPECT_EQ(losses, ten_losses(cluster));
  Cluster other(topology(), {.seed = cluster.seed() + 1000});
  EXPECT_EQ(losses, ten_losses(other));
}

}  // namespace
}  // namespace accelerate
