// What a rank's groups are for, with and without techniques that divide work along the axes.
#include "accelerate/mesh/roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/runtime/runtime.h"
#include "simulator/cluster/cluster.h"

namespace accelerate {
namespace {

using enum MeshAxis;
using simulator::Cluster;
using simulator::Rank;

TEST(RankRoles, AreGroupsThatAreThereWhereTechniquesDivideRowsOnly) {
  Cluster("2x4").run_on_every_rank([](Rank& rank) {
    const ProcessGroupPtr world = rank.runtime().new_group({.name = "world"});
    const DeviceMesh mesh(Mesh({.dp_replicate = 2, .dp_shard = 2, .tp = 2}), rank.runtime());
    const RankRoles roles = rank_roles(mesh, {}, world);
    EXPECT_EQ(roles.loader.group, mesh.group(kDp));
    EXPECT_EQ(roles.tokens.group, mesh.group(kDp));
    EXPECT_EQ(roles.tokens.index, mesh.coordinate(kDp));
    EXPECT_EQ(roles.tokens.count, 4);
    EXPECT_EQ(roles.shards, mesh.group(kDpShard));
    EXPECT_TRUE(roles.makes_shards);
    EXPECT_EQ(roles.replicas, mesh.group(kDpReplicate));
    EXPECT_EQ(roles.same_part, world);
    EXPECT_EQ(roles.scales, roles.tokens.group);
    EXPECT_EQ(roles.norm, roles.shards);
  });
}

TEST(RankRoles, FollowWhatTechniquesDivide) {
  Cluster("4x4").run_on_every_rank([](Rank& rank) {
    const ProcessGroupPtr world = rank.runtime().new_group({.name = "world"});
    const DeviceMesh mesh(Mesh({.dp_replicate = 2, .dp_shard = 2, .sp = 2, .tp = 2}),
                          rank.runtime());
    const RankRoles cut = rank_roles(mesh, {kTp}, world);
    EXPECT_EQ(cut.tokens.group, mesh.group(kDp));
    EXPECT_EQ(cut.shards, mesh.group(kDpShard));
    EXPECT_EQ(cut.replicas, mesh.group(kDpReplicate));
    EXPECT_EQ(cut.same_part, mesh.group(kDpCpSp));
    EXPECT_EQ(cut.scales, mesh.group(AxisSet{kDp, kTp}));
    EXPECT_EQ(cut.scales->getSize(), 8);
    EXPECT_EQ(cut.norm->getSize(), 4);
    EXPECT_EQ(cut.norm_axes, (AxisSet{kDpShard, kTp}));
    const RankRoles all = rank_roles(mesh, {kTp, kSp}, world);
    EXPECT_EQ(all.loader.count, 4);
    EXPECT_EQ(all.tokens.group, mesh.group(kDpCpSp));
    EXPECT_EQ(all.tokens.count, 8);
    EXPECT_EQ(all.tokens.index, mesh.coordinate(kDpCpSp));
    EXPECT_EQ(all.shards, mesh.group(kDpShardCpSp));
    EXPECT_EQ(all.replicas, mesh.group(kDpReplicate));
    EXPECT_EQ(all.same_part, all.tokens.group);
    EXPECT_EQ(all.norm->getSize(), 8);
    EXPECT_EQ(all.scales, world);
    const RankRoles sequence = rank_roles(mesh, {kSp}, world);
    EXPECT_EQ(sequence.scales, sequence.tokens.group);
  });
}

// Replicas that ranks along sp make together, and shards.
TEST(RankRoles, DivideRowsAlongSequencesWhereModelsAreDivided) {
  Cluster("1x4").run_on_every_rank([](Rank& rank) {
    const ProcessGroupPtr world = rank.runtime().new_group({.name = "world"});
    const DeviceMesh mesh(Mesh({.dp_replicate = 2, .sp = 2}), rank.runtime());
    const RankRoles whole = rank_roles(mesh, {kSp}, world, /*divides_rows=*/false);
    EXPECT_EQ(whole.shards, nullptr);
    EXPECT_FALSE(whole.makes_shards);
    EXPECT_EQ(whole.norm, nullptr);
    EXPECT_EQ(whole.tokens.count, 4);
    EXPECT_EQ(whole.token_axes, (AxisSet{kDp, kSp}));
    EXPECT_EQ(whole.same_part, whole.tokens.group);
    const RankRoles divided = rank_roles(mesh, {kSp}, world);
    EXPECT_EQ(divided.shards, mesh.group(kSp));
    EXPECT_TRUE(divided.makes_shards);
    EXPECT_EQ(divided.shard_axes, (AxisSet{kDpShard, kSp}));
  });
}

// Also where one rank is along dp_shard.
TEST(RankRoles, DivideRowsWhereverRanksDivideExperts) {
  Cluster("1x4").run_on_every_rank([](Rank& rank) {
    const ProcessGroupPtr world = rank.runtime().new_group({.name = "world"});
    const DeviceMesh mesh(Mesh({.dp_replicate = 2, .sp = 2, .ep = 2}), rank.runtime());
    const RankRoles roles = rank_roles(mesh, {kSp, kEp}, world, /*divides_rows=*/false);
    EXPECT_EQ(roles.shards, mesh.group(kSp));
    EXPECT_EQ(roles.shards, mesh.group(kEp));
    EXPECT_TRUE(roles.makes_shards);
    EXPECT_EQ(roles.shard_axes, (AxisSet{kDpShard, kSp}));
    EXPECT_EQ(roles.norm, roles.shards);
    EXPECT_EQ(roles.tokens.count, 4);
    EXPECT_EQ(roles.replicas, mesh.group(kDpReplicate));
  });
}

TEST(RankRoles, AreOneGroupWithoutAMesh) {
  Cluster("1x2").run_on_every_rank([](Rank& rank) {
    const ProcessGroupPtr world = rank.runtime().new_group({.name = "world"});
    const RankRoles roles = rank_roles({.index = rank.index(), .count = 2, .group = world});
    EXPECT_EQ(roles.loader.group, world);
    EXPECT_EQ(roles.tokens.index, rank.index());
    EXPECT_EQ(roles.same_part, world);
    EXPECT_EQ(roles.scales, world);
    EXPECT_EQ(roles.shards, nullptr);
    EXPECT_FALSE(roles.makes_shards);
    EXPECT_EQ(roles.norm, nullptr);
  });
}

}  // namespace
}  // namespace accelerate
