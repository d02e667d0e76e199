// Plans of faults on clusters that fold ranks and compute shapes.

#include <string>

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/mesh/mesh.h"
#include "simulator/cluster/cluster.h"
#include "simulator/faults/rules.h"

namespace accelerate::simulator {
namespace {

using ::testing::HasSubstr;

ClusterOptions shapes_under(const std::string& plan) {
  ClusterOptions options{.numerics = Numerics::kShapes};
  options.faults = FaultRules::parse(plan).value();
  return options;
}

ClusterOptions folded_under(const std::string& plan) {
  ClusterOptions options = shapes_under(plan);
  options.fold = Folding{.spot_checks = 0};
  return options;
}

std::string refusal_of(const std::string& spec, const ClusterOptions& options) {
  try {
    const Cluster cluster(spec, options);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(FaultsOfFoldedRuns, HaveTheirRanksExecuted) {
  const Cluster whole("2x4:h100", folded_under(""));
  EXPECT_FALSE(whole.executed().is_executed(5));
  const Cluster cluster("2x4:h100", folded_under("rank 5 at step 100: crash"));
  EXPECT_TRUE(cluster.executed().is_executed(5));
  EXPECT_FALSE(cluster.executed().is_executed(6));
}

TEST(FaultsOfFoldedRuns, StrikeSomeRanksAlone) {
  EXPECT_THAT(refusal_of("32x8:h100", folded_under("rank * at step 3: slow(0.5)")),
              HasSubstr("faults strike 256 ranks"));
  EXPECT_EQ(refusal_of("32x8:h100", folded_under("rank any 3 at step 3: slow(0.5)")), "");
}

TEST(FaultsOfFoldedRuns, AreAlongTheMeshThatIsFolded) {
  ClusterOptions options = folded_under("rank pp=1 tp=1 at step 100: crash");
  EXPECT_THAT(refusal_of("1x4:h100", options), HasSubstr("this run has no mesh"));
  options.fold->mesh = Mesh({.pp = 2, .tp = 2});
  EXPECT_TRUE(Cluster("1x4:h100", options).executed().is_executed(3));
  options.faults = {};
  EXPECT_FALSE(Cluster("1x4:h100", options).executed().is_executed(3));
  options.faults = FaultRules::parse("rank pp=2 at step 100: crash").value();
  EXPECT_THAT(refusal_of("1x4:h100", options),
              HasSubstr("there is no pp=2: the mesh has 2 places along that axis"));
}

TEST(FaultsOfShapes, ChangeNoValuesThatAreNotComputed) {
  Cluster cluster("1x1:h100", shapes_under("rank 0 at op#0 of aten::mm: nan(output)"));
  try {
    cluster.run_on_every_rank([](Rank& rank) {
      const at::Tensor large = at::ones({512, 512}, at::TensorOptions(rank.runtime().device()));
      at::mm(large, large);
    });
    FAIL() << "the run succeeded";
  } catch (const ClusterError& error) {
    EXPECT_THAT(error.what(), HasSubstr("whose values are not computed (numerics = shapes)"));
  }
}

}  // namespace
}  // namespace accelerate::simulator
