// A model that fits on no machine that runs this test: what its training holds, where it ends, and
// with which error. One shape of the cluster each: the bytes are worked out for these devices.
#include <cmath>
#include <exception>
#include <string>
#include <utility>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/examples/gpt/training.h"
#include "integration_tests/gpt/held_bytes.h"
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

gpt::Options seven_billion(const std::string& optimizer) {
  return {.data = "accelerate/examples/gpt/kjv.txt",
          .shape = gpt::shape_of_size("7B"),
          .batch_size = 1,
          .steps = 2,
          .precision = "bf16",
          .activation_checkpointing = true,
          .optimizer = optimizer,
          .log_every = 1};
}

gpt::Result trained(Cluster& cluster, const gpt::Options& options) {
  gpt::Result result;
  cluster.run_on_every_rank([&](Rank& rank) {
    gpt::Result own = gpt::train(options);
    if (rank.index() == 0) result = std::move(own);
  });
  return result;
}

TEST(SevenBillion, HoldsTheBytesOfTheFormula) {
  const gpt::Shape shape = gpt::shape_of_size("7B");
  const HeldBytes expected = formula(shape);
  Cluster alone("1x1:h100,mem=200GiB", shapes_only());
  alone.run_on_every_rank(
      [&](Rank& rank) { EXPECT_TRUE(measured(rank, shape, PrecisionType::kBf16) == expected); });
  Cluster cluster("1x8:h100,mem=200GiB", shapes_only());
  cluster.run_on_every_rank([&](Rank& rank) {
    const HeldBytes found = measured(rank, shape, PrecisionType::kBf16);
    EXPECT_EQ(found.parameters, expected.parameters);
    EXPECT_EQ(found.optimizer_state, expected.optimizer_state);
    // A bucket is one block, and its gradients are not rounded each.
    EXPECT_GE(found.gradients, 4 * shape.num_parameters());
    EXPECT_LE(found.gradients, expected.gradients);
  });
}

TEST(SevenBillion, TrainsWithSgd) {
  Cluster cluster("1x8:h100", shapes_only());
  const gpt::Result result = trained(cluster, seven_billion("sgd"));
  const HeldBytes bytes = formula(gpt::shape_of_size("7B"));
  EXPECT_GT(result.peak_memory_bytes, bytes.parameters + bytes.gradients);
  ASSERT_EQ(result.losses.size(), 2);
  EXPECT_TRUE(std::isnan(result.losses[0])) << "nobody computed a loss";
  // At least six FLOP for each parameter and token, at the device's peak of 989 TFLOP/s.
  const double flops = 6.0 * static_cast<double>(gpt::shape_of_size("7B").num_parameters()) * 2048;
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
