// A model that fits on no machine that runs this test: what its training holds, where it ends, and
// with which error. One shape of the cluster each: the bytes are worked out for these devices.
#include <cmath>
#include <exception>
#include <string>
#include <utility>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/examples/lm/training.h"
#include "integration_tests/lm/held_bytes.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::ClusterOptions;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;

ClusterOptions shapes_only() {
  ClusterOptions options;
  options.numerics = simulator::Numerics::kShapes;
  options.unknown_value = [](const std::string&) { return std::nan(""); };
  return options;
}

lm::Options seven_billion(const std::string& optimizer) {
  return {.data = "accelerate/examples/lm/kjv.txt",
          .config = lm::model_config("7b"),
          .activation_checkpointing = true,
          .mixed_precision = "bf16",
          .batch_size = 1,
          .optimizer = optimizer,
          .max_steps = 2,
          .log_every = 1,
          .evaluation_sequences = 8};
}

lm::Result trained(Cluster& cluster, const lm::Options& options) {
  lm::Result result;
  cluster.run_on_every_rank([&](Rank& rank) {
    lm::Result own = lm::train(options);
    if (rank.index() == 0) result = std::move(own);
  });
  return result;
}

TEST(SevenBillion, HoldsTheBytesOfTheFormula) {
  for (const lm::Blocks blocks : {lm::Blocks::kGpt, lm::Blocks::kLlama}) {
    const lm::Config config = lm::model_config("7b", {.blocks = blocks});
    Cluster alone("1x1:h100,mem=200GiB", shapes_only());
    alone.run_on_every_rank([&](Rank& rank) {
      EXPECT_TRUE(measured(rank, config, PrecisionType::kBf16) == formula(config));
    });
  }
  const lm::Config config = lm::model_config("7b");
  const HeldBytes expected = formula(config);
  Cluster cluster("1x8:h100,mem=200GiB", shapes_only());
  cluster.run_on_every_rank([&](Rank& rank) {
    const HeldBytes found = measured(rank, config, PrecisionType::kBf16);
    EXPECT_EQ(found.parameters, expected.parameters);
    EXPECT_EQ(found.optimizer_state, expected.optimizer_state);
    // A bucket is one block, and its gradients are not rounded each.
    EXPECT_GE(found.gradients, 4 * lm::parameter_count(config));
    EXPECT_LE(found.gradients, expected.gradients);
  });
}

TEST(SevenBillion, TrainsWithSgd) {
  Cluster cluster("1x8:h100", shapes_only());
  const lm::Result result = trained(cluster, seven_billion("sgd"));
  const lm::Config config = lm::model_config("7b");
  const HeldBytes bytes = formula(config);
  EXPECT_GT(result.peak_memory_bytes, bytes.parameters + bytes.gradients);
  ASSERT_EQ(result.losses.size(), 2);
  EXPECT_TRUE(std::isnan(result.losses[0])) << "no loss was computed";
  EXPECT_TRUE(std::isnan(result.evaluation_loss.value())) << "no loss was computed";
  // At least six FLOP for each parameter and token, at the device's peak of 989 TFLOP/s.
  const double flops = 6.0 * static_cast<double>(lm::parameter_count(config)) * 2048;
  EXPECT_GT(result.step_seconds, flops / 989e12);
  EXPECT_LT(result.step_seconds, 20 * flops / 989e12);
}

TEST(SevenBillion, RunsOutOfMemoryForTheStateOfAdamW) {
  Cluster cluster("1x8:h100", shapes_only());
  try {
    trained(cluster, seven_billion("adamw"));
    FAIL() << "parameters, gradients and two moments went into 80 GiB";
  } catch (const ClusterError& error) {
    EXPECT_THROW(std::rethrow_exception(error.failures()[0].exception), c10::OutOfMemoryError);
    EXPECT_THAT(error.failures()[0].message,
                AllOf(HasSubstr("is out of memory: "), HasSubstr(" in step 0, "),
                      HasSubstr("Held:\n  optimizer state: ")));
  }
}

}  // namespace
}  // namespace accelerate
