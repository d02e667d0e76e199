#include "simulator/c10d/fold_plan.h"

#include <algorithm>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/string_view.h"
#include "accelerate/mesh/axis_set.h"

namespace accelerate::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using enum MeshAxis;

FoldPlan plan(absl::string_view spec, const Folding& folding, const std::vector<int>& touched = {},
              uint64_t seed = 1) {
  return FoldPlan(*ClusterSpec::parse(spec), folding, touched, seed);
}

FoldPlan plan_of_mesh(absl::string_view spec, const MeshSizes& sizes,
                      std::vector<MeshAxis> along = {}, const std::vector<int>& touched = {}) {
  return plan(spec, {.spot_checks = 0, .mesh = Mesh(sizes), .along = std::move(along)}, touched);
}

TEST(FoldPlan, ExecutesOneReplicaAndThoseThatAFaultTouches) {
  const FoldPlan folds = plan("2x3", {.spot_checks = 0}, /*touched=*/{0, 4, 4});
  const ExecutedRanks& ranks = folds.executed();
  EXPECT_THAT(ranks.ranks(), ElementsAre(0, 1, 4));
  EXPECT_FALSE(ranks.has_spot_checks());
  EXPECT_EQ(ranks.representative_of(2), 1);
  EXPECT_EQ(ranks.representative_of(4), 4);
  EXPECT_EQ(ranks.weight_of(0), 1);
  EXPECT_EQ(ranks.weight_of(1), 4);
  EXPECT_EQ(ranks.weight_of(4), 1);
  // No rank is left to fold.
  EXPECT_FALSE(plan("1x2", {}, {0, 1}).executed().folds());
}

TEST(FoldPlan, DrawsSpotChecksFromTheSeed) {
  const auto drawn = [](uint64_t seed) {
    return plan("1x1000", {.spot_checks = 2}, {}, seed).executed().ranks();
  };
  EXPECT_THAT(drawn(1), SizeIs(3));
  EXPECT_EQ(drawn(1), drawn(1));
  EXPECT_NE(drawn(1), drawn(2));
  // There are no more folded ranks than that.
  EXPECT_THAT(plan("1x3", {.spot_checks = 7}).executed().ranks(), ElementsAre(0, 1, 2));
}

TEST(FoldPlan, CountsForAllRanksTogether) {
  const Mesh mesh({.pp = 4, .dp_shard = 8, .tp = 4});
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const FoldPlan folds = plan("16x8:h100", {.spot_checks = 2, .mesh = mesh}, {50}, seed);
    int sum = 0;
    for (const int rank : folds.executed().ranks()) sum += folds.executed().weight_of(rank);
    EXPECT_EQ(sum, 128);
  }
}

TEST(FoldPlan, FoldsAlongAllAxesButPp) {
  const FoldPlan folds = plan_of_mesh("4x8:h100", {.pp = 4, .dp_shard = 2, .tp = 4});
  EXPECT_THAT(folds.executed().ranks(), ElementsAre(0, 8, 16, 24));
  EXPECT_EQ(folds.executed().representative_of(13), 8);
}

TEST(FoldPlan, FoldsAlongTheNamedAxes) {
  const MeshSizes sizes{.dp_replicate = 2, .dp_shard = 2, .tp = 2};
  EXPECT_THAT(plan_of_mesh("1x8:h100", sizes, {kDpReplicate}).executed().ranks(),
              ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(plan_of_mesh("1x8:h100", sizes, {kDp}).executed().ranks(), ElementsAre(0, 1));
  EXPECT_THAT(plan_of_mesh("1x8:h100", sizes, {kTp}).executed().ranks(), ElementsAre(0, 2, 4, 6));
}

// Ranks 2 and 3 are a group across the two nodes, the others have a node to themselves.
TEST(FoldPlan, TellsGroupsInsideANodeFromThoseAcross) {
  const FoldPlan folds = plan_of_mesh("2x3:h100", {.dp_replicate = 3, .tp = 2});
  EXPECT_THAT(folds.executed().ranks(), ElementsAre(0, 2));
  EXPECT_EQ(folds.executed().representative_of(3), 2);
  EXPECT_EQ(folds.executed().representative_of(5), 0);
}

// There are three NICs in a node, and local ranks 0 and 1 share the first.
TEST(FoldPlan, TellsMessagesThatShareALink) {
  const MeshSizes sizes{.pp = 2, .dp_replicate = 4};
  EXPECT_THAT(plan_of_mesh("2x4:h100,fabric=fat-tree,nics=3", sizes).executed().ranks(),
              ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(plan_of_mesh("2x4:h100,fabric=fat-tree,nics=1", sizes).executed().ranks(),
              ElementsAre(0, 4));
}

// Rank 5 holds up its tp group, ranks 4 to 7, and its dp group, ranks 1 and 5.
TEST(FoldPlan, KeepsTheNeighboursOfARankThatAFaultTouchesApart) {
  const FoldPlan folds = plan_of_mesh("3x4:h100", {.dp_replicate = 3, .tp = 4}, {}, {5});
  EXPECT_THAT(folds.executed().ranks(), ElementsAre(0, 1, 4, 5));
  EXPECT_EQ(folds.executed().representative_of(7), 4);
  EXPECT_EQ(folds.executed().representative_of(9), 1);
  EXPECT_EQ(folds.executed().representative_of(11), 0);
}

TEST(FoldPlan, ExecutesWhatTheGroupsOfASpotCheckNeed) {
  const FoldPlan folds = plan("4x4:h100", {.spot_checks = 1, .mesh = Mesh({.pp = 4, .tp = 4})});
  EXPECT_THAT(folds.executed().ranks(), SizeIs(8));
  EXPECT_TRUE(folds.executed().has_spot_checks());
}

// Groups begin with the rank that the others are given something by.
TEST(FoldPlan, ExecutesTheFirstRankOfEachGroup) {
  const Mesh mesh({.dp_replicate = 4, .dp_shard = 2, .tp = 4});
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const FoldPlan folds = plan("4x8:h100", {.spot_checks = 1, .mesh = mesh}, {}, seed);
    for (const int rank : folds.executed().ranks()) {
      for (const MeshAxis axis : values<MeshAxis>()) {
        EXPECT_TRUE(folds.executed().is_executed(mesh.group(rank, axis)[0])) << rank;
      }
    }
  }
}

TEST(FoldPlan, PassesMessagesAlongAxesThatAreNotFolded) {
  const FoldPlan folds = plan_of_mesh("2x4:h100", {.pp = 2, .dp_replicate = 4});
  EXPECT_TRUE(folds.allows_message(0, 4));
  EXPECT_TRUE(folds.allows_message(4, 0));
  EXPECT_FALSE(folds.allows_message(0, 1));
  EXPECT_FALSE(folds.allows_message(1, 5));
  EXPECT_THAT(folds.copies_of_message(0, 4), ElementsAre(Pair(1, 5), Pair(2, 6), Pair(3, 7)));
  EXPECT_THAT(folds.copies_of_message(4, 0), ElementsAre(Pair(5, 1), Pair(6, 2), Pair(7, 3)));
  EXPECT_TRUE(FoldPlan(8).allows_message(0, 1));
  EXPECT_THAT(FoldPlan(8).copies_of_message(0, 1), IsEmpty());
}

TEST(FoldPlan, CopiesGroupsWithoutAnExecutedRank) {
  const FoldPlan folds = plan_of_mesh("2x4:h100", {.dp_replicate = 2, .tp = 4});
  EXPECT_THAT(folds.copies_of_group({0, 1, 2, 3}), ElementsAre(ElementsAre(4, 5, 6, 7)));
  EXPECT_THAT(folds.copies_of_group({0, 4}),
              ElementsAre(ElementsAre(1, 5), ElementsAre(2, 6), ElementsAre(3, 7)));
  EXPECT_THAT(folds.copies_of_group({0, 1, 2, 3, 4, 5, 6, 7}), IsEmpty());
}

TEST(FoldPlan, CopiesGroupsAlongSeveralAxes) {
  const MeshSizes sizes{.dp_replicate = 2, .dp_shard = 2, .tp = 2};
  const FoldPlan replicas = plan_of_mesh("2x4:h100", sizes, {kDpReplicate});
  EXPECT_THAT(replicas.copies_of_group({0, 1, 2, 3}), ElementsAre(ElementsAre(4, 5, 6, 7)));
  EXPECT_THAT(replicas.copies_of_group({0, 1, 4, 5}), IsEmpty());  // {2, 3, 6, 7} runs
  EXPECT_THAT(replicas.copies_of_group({0, 3}), IsEmpty());        // is none of the mesh
  const FoldPlan all = plan_of_mesh("2x4:h100", sizes);
  EXPECT_THAT(all.copies_of_group({0, 1, 2, 3}), ElementsAre(ElementsAre(4, 5, 6, 7)));
  EXPECT_THAT(all.copies_of_group({0, 1, 4, 5}), ElementsAre(ElementsAre(2, 3, 6, 7)));
}

// Each member of a group of executed ranks counts as one that is in the group.
TEST(FoldPlan, ExecutesWhatGroupsAlongSeveralAxesNeed) {
  const Mesh mesh({.dp_replicate = 4, .dp_shard = 2, .tp = 3});
  for (const AxisSet axes :
       {AxisSet{kDpReplicate, kTp}, AxisSet{kDpShard, kTp}, AxisSet{kDp, kTp}}) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const FoldPlan folds = plan("3x8:h100", {.spot_checks = 1, .mesh = mesh}, {7}, seed);
      const ExecutedRanks& ranks = folds.executed();
      for (const int rank : ranks.ranks()) {
        const std::vector<int> group = mesh.group(rank, axes);
        EXPECT_TRUE(ranks.is_executed(group[0])) << axes.to_string() << " of " << rank;
        for (const int member : group) {
          EXPECT_TRUE(std::ranges::any_of(group,
                                          [&](int other) {
                                            return ranks.is_executed(other) &&
                                                   ranks.class_of(other) == ranks.class_of(member);
                                          }))
              << axes.to_string() << " of " << rank << ": " << member;
        }
      }
    }
  }
}

}  // namespace
}  // namespace accelerate::simulator
