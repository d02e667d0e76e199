// The example trains: it begins at the loss of a guess and learns, on any number of ranks and after
// an interruption, and the numbers do not depend on the schedule.
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/examples/lm/training.h"
#include "simulator/cluster/cluster.h"
#include "simulator/disk/sim_disk.h"
#include "simulator/testing/topology_suite.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::Rank;
using ::testing::HasSubstr;

lm::Options tiny(lm::Blocks blocks = lm::Blocks::kGpt) {
  return {
      .data = "accelerate/examples/lm/kjv.txt",
      .config = lm::model_config(
          "tiny", {.blocks = blocks, .layers = 2, .hidden = 32, .heads = 2, .sequence_length = 32}),
      .learning_rate = 1e-2,
      .warmup_steps = 4,
      .max_steps = 30,
      .log_every = 10};
}

lm::Result trained(Cluster& cluster, const lm::Options& options) {
  lm::Result result;
  cluster.run_on_every_rank([&](Rank& rank) {
    lm::Result own = lm::train(options);
    if (rank.index() == 0) result = std::move(own);
  });
  return result;
}

TOPOLOGY_SUITE(LmTraining, .hardware = simulator::Hardware::kNoTpu);

TEST_P(LmTraining, LearnsAndRepeatsBitForBit) {
  for (const lm::Blocks blocks : {lm::Blocks::kGpt, lm::Blocks::kLlama}) {
    Cluster cluster = make_cluster({.seed = 1});
    lm::Options options = tiny(blocks);
    const lm::Result result = trained(cluster, options);
    ASSERT_EQ(result.losses.size(), 3) << "a row every ten steps";
    // A guess has ln 256 = 5.5, and the frequencies of single letters about 3.0.
    EXPECT_LT(result.losses[2], 3.6);
    EXPECT_LT(result.evaluation_loss.value(), 3.6);
    EXPECT_EQ(result.peak_memory_bytes > 0, has_devices());
    EXPECT_EQ(result.step_seconds > 0, has_devices());
    Cluster other(topology(), {.seed = cluster.seed() + 1000});
    options.activation_checkpointing = true;
    const lm::Result again = trained(other, options);
    EXPECT_EQ(again.losses, result.losses);
    EXPECT_EQ(again.evaluation_loss, result.evaluation_loss);
  }
}

TEST_P(LmTraining, BeginsAtTheLossOfAGuess) {
  for (const char* precision : {"no", "bf16"}) {
    for (const lm::Blocks blocks : {lm::Blocks::kGpt, lm::Blocks::kLlama}) {
      lm::Options options = tiny(blocks);
      options.mixed_precision = precision;
      options.optimizer = blocks == lm::Blocks::kGpt ? "sgd" : "adamw";
      options.max_steps = 1;
      options.evaluation_sequences = 0;
      Cluster cluster = make_cluster();
      const lm::Result result = trained(cluster, options);
      ASSERT_EQ(result.losses.size(), 1);
      EXPECT_NEAR(result.losses[0], std::log(256), 0.1) << precision;
      EXPECT_FALSE(result.evaluation_loss);
    }
  }
}

// Stopped two steps after a checkpoint, in the middle of the warm-up and of an epoch.
TEST_P(LmTraining, GoesOnFromACheckpointBitForBit) {
  lm::Options options = tiny(lm::Blocks::kLlama);
  options.gradient_accumulation_steps = 2;
  options.warmup_steps = 8;
  options.max_steps = 10;
  options.log_every = 1;
  options.output_dir = "/sim/run";
  options.checkpointing_steps = 5;
  Cluster undisturbed = make_cluster({.disk = std::make_shared<simulator::SimDisk>()});
  const lm::Result whole = trained(undisturbed, options);
  ASSERT_EQ(whole.losses.size(), 10);
  Cluster cluster = make_cluster({.disk = std::make_shared<simulator::SimDisk>()});
  options.max_steps = 7;
  trained(cluster, options);
  options.max_steps = 10;
  options.resume = true;
  const lm::Result rest = trained(cluster, options);
  EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + 5, whole.losses.end()));
  EXPECT_EQ(rest.evaluation_loss, whole.evaluation_loss);
}

// Two shapes, which are compared: a step has 8 sequences, on one rank, in four micro-steps of it,
// or on four ranks.
TEST(LmParity, FourRanksAndMicroStepsFollowOneRank) {
  for (const lm::Blocks blocks : {lm::Blocks::kGpt, lm::Blocks::kLlama}) {
    lm::Options options = tiny(blocks);
    options.learning_rate = 1e-3;
    options.max_steps = 12;
    options.log_every = 1;
    options.batch_size = 8;
    Cluster one("1x1"), four("2x2");
    const lm::Result whole = trained(one, options);
    options.batch_size = 2;
    const lm::Result shared = trained(four, options);
    options.gradient_accumulation_steps = 4;
    const lm::Result in_micro_steps = trained(one, options);
    ASSERT_EQ(whole.losses.size(), 12);
    EXPECT_LT(whole.losses.back(), whole.losses.front() - 0.1);
    for (const lm::Result& other : {shared, in_micro_steps}) {
      ASSERT_EQ(other.losses.size(), 12);
      for (size_t step = 0; step < whole.losses.size(); ++step) {
        EXPECT_NEAR(other.losses[step], whole.losses[step], 1e-5) << "step " << step;
      }
      EXPECT_NEAR(other.evaluation_loss.value(), whole.evaluation_loss.value(), 1e-5);
    }
  }
}

// One rank: each is a mistake that all ranks make alike.
TEST(LmMistakes, AreNamed) {
  const auto error_of = [](lm::Options options) -> std::string {
    Cluster cluster("1x1");
    try {
      trained(cluster, options);
    } catch (const ClusterError& error) {
      return error.what();
    }
    return "no error";
  };
  lm::Options options = tiny();
  options.config.vocabulary = 100;
  EXPECT_THAT(error_of(options), HasSubstr("a vocabulary of 100 is too small"));
  options = tiny();
  options.config.sequence_length = 1'000'000;
  EXPECT_THAT(error_of(options),
              HasSubstr("fewer than the 10000010 that sequences of 1000000 tokens need"));
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
