// One rank and eight, with the same global batch, train alike: replicas average what one rank sums.
// Two shapes only, because a whole training takes seconds; accelerator/training_test has others.
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "accelerate/examples/digits/training.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

digits::Result trained_on(const char* topology, const digits::Options& options) {
  simulator::Cluster cluster(topology);
  digits::Result result;
  cluster.run_on_every_rank([&](simulator::Rank& rank) {
    digits::Result own = digits::train(options);
    if (rank.index() == 0) result = std::move(own);
  });
  return result;
}

TEST(DigitsParity, EightRanksFollowOne) {
  const digits::Options options{.data = "accelerate/examples/digits/digits.safetensors"};
  const digits::Result one = trained_on("1x1", options);
  const digits::Result eight = trained_on("2x4", options);
  ASSERT_GE(one.step_losses.size(), 20);
  ASSERT_EQ(one.step_losses.size(), eight.step_losses.size());
  for (int step = 0; step < 20; ++step) {
    EXPECT_NEAR(one.step_losses[step], eight.step_losses[step], 1e-5) << "step " << step;
  }
  EXPECT_NEAR(one.test_accuracy, eight.test_accuracy, 0.02);
  EXPECT_GE(eight.test_accuracy, 0.96);
}

}  // namespace
}  // namespace accelerate
