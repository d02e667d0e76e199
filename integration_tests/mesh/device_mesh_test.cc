// The groups of a mesh on simulated clusters, each of the shape that its mesh needs.
#include "accelerate/mesh/device_mesh.h"

#include <optional>
#include <string>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "accelerate/comm/operations.h"
#include "accelerate/testing/value_error.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using simulator::Cluster;
using simulator::ClusterError;
using simulator::Rank;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(DeviceMesh, Of64RanksWithEveryAxisHasAGroupForEachAxis) {
  Cluster("8x8").run_on_every_rank([](Rank& rank) {
    const Mesh mesh({.pp = 2, .dp_replicate = 2, .dp_shard = 2, .cp = 2, .sp = 2, .tp = 2});
    const DeviceMesh device_mesh(mesh, rank.runtime());
    for (const MeshAxis axis : values<MeshAxis>()) {
      const std::vector<int> ranks = mesh.group(rank.index(), axis);
      int64_t sum = 0;
      for (const int member : ranks) sum += member;
      const ProcessGroupPtr& group = device_mesh.group(axis);
      ASSERT_NE(group, nullptr) << to_string(axis);
      EXPECT_EQ(group->getSize(), mesh.size(axis)) << to_string(axis);
      EXPECT_EQ(group->getRank(), device_mesh.coordinate(axis)) << to_string(axis);
      const at::Tensor own = at::full({1}, rank.index(), at::kLong);
      EXPECT_EQ(reduce_tensor(group, own, Reduction::kSum).item<int64_t>(), sum) << to_string(axis);
    }
    if (rank.index() != 4) return;
    EXPECT_EQ(device_mesh.group(MeshAxis::kTp)->getGroupName(), "tp of ranks 4,5");
    EXPECT_EQ(device_mesh.group(MeshAxis::kPp)->getGroupName(), "pp of ranks 4,36");
  });
}

TEST(DeviceMesh, HasNoGroupAlongAnAxisThatIsOffAndOneForAxesThatAreAlike) {
  Cluster("1x4").run_on_every_rank([](Rank& rank) {
    const DeviceMesh mesh(Mesh({.dp_shard = 2, .tp = 2}), rank.runtime());
    for (const MeshAxis axis :
         {MeshAxis::kPp, MeshAxis::kDpReplicate, MeshAxis::kCp, MeshAxis::kSp}) {
      EXPECT_EQ(mesh.group(axis), nullptr) << to_string(axis);
      EXPECT_EQ(mesh.coordinate(axis), 0) << to_string(axis);
    }
    EXPECT_EQ(mesh.group(MeshAxis::kDp), mesh.group(MeshAxis::kDpShard));
    EXPECT_EQ(mesh.group(MeshAxis::kDpCp), mesh.group(MeshAxis::kDpShardCp));
    EXPECT_EQ(mesh.group(MeshAxis::kDpCpSp), mesh.group(MeshAxis::kDp));
    EXPECT_NE(mesh.group(MeshAxis::kDp), mesh.group(MeshAxis::kTp));
  });
}

TEST(DeviceMesh, MakesAGroupAlongSeveralAxesOnceAndWhereNoAxisHasItsRanks) {
  Cluster("2x4").run_on_every_rank([](Rank& rank) {
    const DeviceMesh mesh(Mesh({.dp_replicate = 2, .dp_shard = 2, .tp = 2}), rank.runtime());
    EXPECT_EQ(mesh.group({MeshAxis::kPp, MeshAxis::kTp}), mesh.group(MeshAxis::kTp));
    EXPECT_EQ(mesh.group({MeshAxis::kDpReplicate, MeshAxis::kDpShard}), mesh.group(MeshAxis::kDp));
    EXPECT_EQ(mesh.group({MeshAxis::kCp, MeshAxis::kPp}), nullptr);
    const AxisSet replica = {MeshAxis::kDpShard, MeshAxis::kTp};
    const ProcessGroupPtr group = mesh.group(replica);
    EXPECT_EQ(group, mesh.group(replica));
    EXPECT_EQ(group->getSize(), 4);
    EXPECT_EQ(group->getGroupName(), rank.index() < 4 ? "dp_shard and tp of ranks 0,1,2,3"
                                                      : "dp_shard and tp of ranks 4,5,6,7");
    const at::Tensor own = at::full({1}, rank.index(), at::kLong);
    EXPECT_EQ(reduce_tensor(group, own, Reduction::kSum).item<int64_t>(),
              rank.index() < 4 ? 6 : 22);
  });
}

TEST(DeviceMesh, NamesLongGroupsByTheirEnds) {
  Cluster("1x16").run_on_every_rank([](Rank& rank) {
    const DeviceMesh mesh(Mesh({.dp_replicate = 16}), rank.runtime());
    EXPECT_EQ(mesh.group(MeshAxis::kDp)->getGroupName(), "dp_replicate of ranks 0,1,...,15");
  });
}

TEST(DeviceMesh, TellsItsGroupsByTheirNames) {
  EXPECT_EQ(axis_of_group("tp of ranks 4,5"), MeshAxis::kTp);
  EXPECT_EQ(axis_of_group("dp of ranks 0,1,...,15"), MeshAxis::kDp);
  EXPECT_EQ(axis_of_group("dp_shard of ranks 0,1"), MeshAxis::kDpShard);
  EXPECT_EQ(axis_of_group("world"), std::nullopt);
}

TEST(DeviceMesh, RefusesAJobOfAnotherSize) {
  Cluster("1x2").run_on_every_rank([](Rank& rank) {
    EXPECT_THAT(value_error_of([&] { DeviceMesh(Mesh({.tp = 4}), rank.runtime()); }),
                HasSubstr("a mesh of 4 ranks (tp 4) does not fit a job of 2 ranks"));
  });
}

// Ranks 1 and 2 begin with cp, the others with tp: each waits for one that waits for another.
TEST(DeviceMesh, CollectivesOfTwoAxesInAnotherOrderAreBothNamed) {
  Cluster cluster("1x8");
  std::string what;
  try {
    cluster.run_on_every_rank([](Rank& rank) {
      const DeviceMesh mesh(Mesh({.dp_shard = 2, .cp = 2, .tp = 2}), rank.runtime(),
                            {.timeout = absl::Minutes(1)});
      const bool swaps = rank.index() == 1 || rank.index() == 2;
      for (const MeshAxis axis :
           {swaps ? MeshAxis::kCp : MeshAxis::kTp, swaps ? MeshAxis::kTp : MeshAxis::kCp}) {
        reduce_tensor(mesh.group(axis), at::ones({1}), Reduction::kSum);
      }
    });
  } catch (const ClusterError& error) {
    what = error.what();
  }
  EXPECT_THAT(what, AllOf(HasSubstr("tp of ranks 0,1"), HasSubstr("cp of ranks 1,3"))) << what;
}

}  // namespace
}  // namespace accelerate
