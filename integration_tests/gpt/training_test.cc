// The example trains: it begins at the loss of a guess and learns, on any number of ranks, and the
// numbers do not depend on the schedule.
#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/examples/gpt/training.h"
#include "simulator/cluster/cluster.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::Rank;
using ::testing::HasSubstr;

gpt::Options tiny() {
  return {.data = "accelerate/examples/gpt/kjv.txt",
          .shape = {.layers = 2, .heads = 2, .width = 32, .context = 32},
          .steps = 30,
          .learning_rate = 1e-2,
          .log_every = 10};
}

gpt::Result trained(Cluster& cluster, const gpt::Options& options) {
  gpt::Result result;
  cluster.run_on_every_rank([&](Rank& rank) {
    gpt::Result own = gpt::train(options);
    if (rank.index() == 0) result = std::move(own);
  });
  return result;
}

TOPOLOGY_SUITE(GptTraining, .hardware = simulator::Hardware::kNoTpu);

TEST_P(GptTraining, LearnsAndRepeatsBitForBit) {
  Cluster cluster = make_cluster({.seed = 1});
  gpt::Options options = tiny();
  const gpt::Result result = trained(cluster, options);
  ASSERT_EQ(result.losses.size(), 3) << "a row every ten steps";
  // A guess has ln 256 = 5.5, and the frequencies of single letters about 3.0.
  EXPECT_LT(result.losses[2], 3.6);
  EXPECT_EQ(result.peak_memory_bytes > 0, has_devices());
  Cluster other(topology(), {.seed = cluster.seed() + 1000});
  EXPECT_EQ(trained(other, options).losses, result.losses);
  options.activation_checkpointing = true;
  EXPECT_EQ(trained(cluster, options).losses, result.losses);
}

TEST_P(GptTraining, BeginsAtTheLossOfAGuess) {
  for (const char* precision : {"no", "bf16"}) {
    for (const char* optimizer : {"adamw", "sgd"}) {
      gpt::Options options = tiny();
      options.precision = precision;
      options.optimizer = optimizer;
      options.steps = 1;
      Cluster cluster = make_cluster();
      const gpt::Result result = trained(cluster, options);
      ASSERT_EQ(result.losses.size(), 1);
      EXPECT_NEAR(result.losses[0], std::log(256), 0.1) << precision << ", " << optimizer;
    }
  }
}

TEST_P(GptTraining, ReadsNoLossWhereNoneIsLogged) {
  gpt::Options options = tiny();
  options.steps = 2;
  options.log_every = 0;
  Cluster cluster = make_cluster();
  const gpt::Result result = trained(cluster, options);
  EXPECT_TRUE(result.losses.empty());
  EXPECT_EQ(result.step_seconds > 0, has_devices());
  EXPECT_EQ(result.tokens_per_second > 0, has_devices());
}

// One rank: each is a mistake that all ranks make alike.
TEST(GptMistakes, AreNamed) {
  const auto error_of = [](gpt::Options options) -> std::string {
    Cluster cluster("1x1");
    try {
      trained(cluster, options);
    } catch (const ClusterError& error) {
      return error.what();
    }
    return "no error";
  };
  gpt::Options options = tiny();
  options.shape.vocabulary = 100;
  EXPECT_THAT(error_of(options), HasSubstr("a vocabulary of 100 is too small"));
  options = tiny();
  options.shape.context = 1'000'000;
  EXPECT_THAT(error_of(options), HasSubstr("fewer than the 1000001 of a sequence"));
  options = tiny();
  options.batch_size = 1'000'000;
  EXPECT_THAT(error_of(options), HasSubstr("too few sequences"));
  options = tiny();
  options.optimizer = "lamb";
  EXPECT_THAT(error_of(options), HasSubstr("take adamw or sgd"));
  options = tiny();
  options.data = "no_such_file";
  EXPECT_THAT(error_of(options), HasSubstr("no_such_file"));
}

}  // namespace
}  // namespace accelerate
