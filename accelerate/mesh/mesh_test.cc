#include "accelerate/mesh/mesh.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "accelerate/platform/environment.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using enum MeshAxis;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Mesh, VariesFastestInTheInnermostAxis) {
  const Mesh mesh({.dp_replicate = 2, .dp_shard = 2, .tp = 2});
  EXPECT_EQ(mesh.num_ranks(), 8);
  EXPECT_EQ(mesh.to_string(), "dp_replicate 2 x dp_shard 2 x tp 2");
  EXPECT_THAT(mesh.axes(), ElementsAre(kDpReplicate, kDpShard, kTp));
  EXPECT_EQ(mesh.coordinate(5, kDpReplicate), 1);
  EXPECT_EQ(mesh.coordinate(5, kDpShard), 0);
  EXPECT_EQ(mesh.coordinate(5, kTp), 1);
  EXPECT_EQ(mesh.coordinate(5, kDp), 2);
  EXPECT_THAT(mesh.group(5, kDpReplicate), ElementsAre(1, 5));
  EXPECT_THAT(mesh.group(5, kDpShard), ElementsAre(5, 7));
  EXPECT_THAT(mesh.group(5, kTp), ElementsAre(4, 5));
  EXPECT_THAT(mesh.group(5, kDp), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(mesh.group(5, kCp), ElementsAre(5));
}

TEST(Mesh, JoinsSequencePartsWithReplicasAndShards) {
  const Mesh mesh({.dp_replicate = 2, .dp_shard = 2, .sp = 2, .tp = 2});
  EXPECT_EQ(mesh.size(kDpCpSp), 8);
  EXPECT_EQ(mesh.size(kDpShardCpSp), 4);
  EXPECT_EQ(mesh.coordinate(13, kDpCpSp), 6);
  EXPECT_THAT(mesh.group(13, kDpShardCpSp), ElementsAre(9, 11, 13, 15));
  EXPECT_EQ(mesh.group(13, kDpCpSp), mesh.group(1, kDpCpSp));
}

TEST(Mesh, TakesSeveralAxesAtOnce) {
  const Mesh mesh({.pp = 2, .dp_replicate = 3, .tp = 2}, PpPlacement::kInsideDpReplicate);
  EXPECT_EQ(mesh.size({kPp, kTp}), 4);
  EXPECT_EQ(mesh.coordinate(7, {kPp, kTp}), 3);
  EXPECT_THAT(mesh.group(7, {kPp, kTp}), ElementsAre(4, 5, 6, 7));
  // In the order of the mesh, in which replicas are outside of stages.
  EXPECT_EQ(mesh.coordinate(10, {kPp, kDpReplicate}), 5);
  EXPECT_THAT(mesh.group(10, {kPp, kDpReplicate}), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(mesh.group(7, AxisSet()), ElementsAre(7));
  EXPECT_EQ(mesh.group(7, AxisSet::all()).size(), 12);
  EXPECT_EQ(mesh.several({kPp, kDpShard, kTp}), (AxisSet{kPp, kTp}));
}

TEST(Mesh, HasEachRankAtItsCoordinateAlongSeveralAxes) {
  for (const PpPlacement placement : {PpPlacement::kOutermost, PpPlacement::kInsideDpReplicate}) {
    const Mesh mesh({.pp = 2, .dp_replicate = 3, .tp = 2}, placement);
    for (const AxisSet& axes :
         {AxisSet{kPp, kTp}, AxisSet{kPp, kDpReplicate}, AxisSet{kDp, kTp}, AxisSet::all()}) {
      for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
        const std::vector<int> group = mesh.group(rank, axes);
        EXPECT_EQ(group.at(static_cast<size_t>(mesh.coordinate(rank, axes))), rank)
            << mesh.to_string() << " along " << axes.to_string();
      }
    }
  }
}

TEST(AxisSet, HasThePlainAxesOfJoinedOnes) {
  const AxisSet set = {kDpShardCp, kTp};
  EXPECT_THAT(set.axes(), ElementsAre(kDpShard, kCp, kTp));
  EXPECT_EQ(set, (AxisSet{kTp, kCp, kDpShard}));
  EXPECT_EQ(set.to_string(), "dp_shard and cp and tp");
  EXPECT_TRUE(set.contains(kDpShardCp));
  EXPECT_FALSE(set.contains(kDpShardCpSp));
  EXPECT_EQ((set - AxisSet{kTp, kPp}), AxisSet{kDpShardCp});
  EXPECT_EQ(set & AxisSet{kDp}, AxisSet{kDpShard});
  EXPECT_EQ(set | AxisSet{kDp}, (AxisSet{kDp, kCp, kTp}));
  EXPECT_TRUE(AxisSet().empty());
  EXPECT_EQ(AxisSet().to_string(), "no axis");
  EXPECT_EQ((AxisSet::all() - AxisSet{kPp, kTp}).axes(), AxisSet{kDpCpSp}.axes());
}

TEST(Mesh, PutsStagesOutsideOrInsideReplicas) {
  const MeshSizes sizes = {.pp = 2, .dp_replicate = 3, .tp = 2};
  const Mesh outermost(sizes);
  EXPECT_THAT(outermost.axes(), ElementsAre(kPp, kDpReplicate, kTp));
  EXPECT_THAT(outermost.group(3, kPp), ElementsAre(3, 9));
  EXPECT_THAT(outermost.group(3, kDpReplicate), ElementsAre(1, 3, 5));
  const Mesh inside(sizes, PpPlacement::kInsideDpReplicate);
  EXPECT_THAT(inside.axes(), ElementsAre(kDpReplicate, kPp, kTp));
  EXPECT_EQ(inside.to_string(), "dp_replicate 3 x pp 2 x tp 2");
  EXPECT_THAT(inside.group(3, kPp), ElementsAre(1, 3));
  EXPECT_THAT(inside.group(3, kDpReplicate), ElementsAre(3, 7, 11));
  EXPECT_NE(outermost, inside);
}

TEST(Mesh, IsThatOfAConfiguration) {
  const ParallelismConfig config({.dp_shard_size = 2,
                                  .tp_size = 2,
                                  .sp_size = 2,
                                  .pp_size = 2,
                                  .pp_placement = PpPlacement::kInsideDpReplicate},
                                 Environment());
  EXPECT_EQ(Mesh(config),
            Mesh({.pp = 2, .dp_shard = 2, .sp = 2, .tp = 2}, PpPlacement::kInsideDpReplicate));
}

TEST(Mesh, MayBeOneRank) {
  const Mesh mesh{MeshSizes()};
  EXPECT_EQ(mesh.num_ranks(), 1);
  EXPECT_THAT(mesh.axes(), IsEmpty());
  EXPECT_THAT(mesh.group(0, kDpCp), ElementsAre(0));
  EXPECT_EQ(mesh.to_string(), "1 rank");
}

TEST(Mesh, RefusesAxesWithoutRanksAndTooManyRanks) {
  EXPECT_THAT(value_error_of([] { Mesh({.cp = 0}); }), HasSubstr("cp has 0 ranks"));
  EXPECT_THAT(value_error_of([] { Mesh({.dp_shard = 1 << 16, .tp = 1 << 16}); }),
              HasSubstr("more than 2147483647 ranks"));
  EXPECT_THAT(value_error_of([] { Mesh({.dp_shard = 4, .ep = 3}); }),
              HasSubstr("ep has 3 ranks, which do not divide the 4 along dp_shard_cp_sp"));
  EXPECT_THAT(value_error_of([] { Mesh({.ep = 0}); }), HasSubstr("ep has 0 ranks"));
}

// Calls `use` with all six sizes whose product is `ranks`.
void for_each_factorisation(int ranks, const std::function<void(const MeshSizes&)>& use) {
  std::vector<int> sizes;
  const std::function<void(int)> choose = [&](int left) {
    if (sizes.size() + 1 == kNumPlainAxes) {
      use({sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], left});
      return;
    }
    for (int size = 1; size <= left; ++size) {
      if (left % size != 0) continue;
      sizes.push_back(size);
      choose(left / size);
      sizes.pop_back();
    }
  };
  choose(ranks);
}

// The first thing that is wrong with the mesh's coordinates and groups; empty if nothing is.
std::string fault_of(const Mesh& mesh) {
  std::set<std::vector<int>> seen;
  std::vector<int> grouped(static_cast<size_t>(mesh.num_ranks()));
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    std::vector<int> coordinates;
    for (const MeshAxis axis : mesh.axes()) coordinates.push_back(mesh.coordinate(rank, axis));
    if (!seen.insert(coordinates).second) return absl::StrCat("rank ", rank, " is another's twin");
  }
  for (const MeshAxis axis : values<MeshAxis>()) {
    std::fill(grouped.begin(), grouped.end(), 0);
    for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
      if (mesh.coordinate(rank, axis) != 0) continue;
      const std::vector<int> group = mesh.group(rank, axis);
      if (static_cast<int>(group.size()) != mesh.size(axis) || group[0] != rank) {
        return absl::StrCat("rank ", rank, " does not begin a group along ", to_string(axis));
      }
      for (size_t i = 0; i < group.size(); ++i) {
        ++grouped[static_cast<size_t>(group[i])];
        // The same table from everybody's view, with everybody at their coordinate.
        if (mesh.coordinate(group[i], axis) != static_cast<int>(i) ||
            mesh.group(group[i], axis) != group || (i > 0 && group[i] <= group[i - 1])) {
          return absl::StrCat("rank ", group[i], " sees other ranks along ", to_string(axis));
        }
      }
    }
    for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
      if (grouped[static_cast<size_t>(rank)] != 1) {
        return absl::StrCat("rank ", rank, " is in ", grouped[static_cast<size_t>(rank)],
                            " groups along ", to_string(axis));
      }
    }
  }
  return "";
}

TEST(Mesh, DividesTheRanksAlongEveryAxisWhateverItsSizes) {
  int64_t meshes = 0;
  for (int ranks = 2; ranks <= 64; ++ranks) {
    for_each_factorisation(ranks, [&](const MeshSizes& sizes) {
      ++meshes;
      const Mesh mesh(sizes);
      ASSERT_EQ(mesh.num_ranks(), ranks);
      ASSERT_EQ(fault_of(mesh), "") << mesh.to_string();
      const Mesh inside(sizes, PpPlacement::kInsideDpReplicate);
      if (inside != mesh) ASSERT_EQ(fault_of(inside), "") << inside.to_string();
    });
    if (HasFatalFailure()) return;
  }
  // There are C(11, 5) = 462 layouts of 64 = 2^6 ranks alone.
  EXPECT_GT(meshes, 462);
}

// Experts divide ranks along dp_shard here, where sequences are whole.
TEST(Mesh, HasASecondViewForExperts) {
  const Mesh mesh({.dp_replicate = 2, .dp_shard = 4, .tp = 2, .ep = 2});
  EXPECT_EQ(mesh.num_ranks(), 16);
  EXPECT_EQ(mesh.to_string(), "dp_replicate 2 x dp_shard 4 (edp 2 x ep 2) x tp 2");
  EXPECT_THAT(mesh.axes(), ElementsAre(kDpReplicate, kDpShard, kTp));
  EXPECT_EQ(mesh.size(kEp), 2);
  EXPECT_EQ(mesh.size(kEdp), 2);
  EXPECT_THAT(mesh.group(3, kDpShard), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(mesh.group(3, kEp), ElementsAre(1, 3));
  EXPECT_THAT(mesh.group(3, kEdp), ElementsAre(3, 7));
  EXPECT_EQ(mesh.coordinate(7, kEp), 1);
  EXPECT_EQ(mesh.coordinate(7, kEdp), 1);
  const AxisSet beside = AxisSet::all() - AxisSet{kEp};
  EXPECT_THAT(mesh.group(3, beside - AxisSet{kTp}), ElementsAre(3, 7, 11, 15));
  EXPECT_EQ(fault_of(mesh), "");
}

// Ranks along cp are neighbours, so that experts are divided along it first.
TEST(Mesh, DividesExpertsAlongSequencesAsWell) {
  const Mesh along_cp({.dp_shard = 2, .cp = 2, .tp = 2, .ep = 2});
  EXPECT_EQ(along_cp.to_string(), "dp_shard 2 x cp 2 (edp 1 x ep 2) x tp 2");
  EXPECT_THAT(along_cp.group(5, kEp), ElementsAre(5, 7));
  EXPECT_THAT(along_cp.group(5, kEdp), ElementsAre(1, 5));
  EXPECT_EQ(along_cp.several(AxisSet{kEdp, kTp}).to_string(), "edp and tp");
  EXPECT_EQ(along_cp.several(AxisSet{kDpShardCp, kEp}), AxisSet{kDpShardCp});
  // The piece of dp_shard has one rank, and is left out.
  const AxisSet piece_of_cp = along_cp.several(AxisSet{kEp});
  EXPECT_EQ(piece_of_cp, AxisSet{kCp} & AxisSet{kEp});
  EXPECT_THAT(piece_of_cp.axes(), ElementsAre(kEp));
  EXPECT_EQ(along_cp.group(5, piece_of_cp), along_cp.group(5, kEp));
  EXPECT_EQ(along_cp.coordinate(7, piece_of_cp), along_cp.coordinate(7, kEp));
  const Mesh along_both({.dp_shard = 4, .cp = 2, .ep = 4});
  EXPECT_EQ(along_both.to_string(), "dp_shard 4 (edp 2 x ep 2) x cp 2 (edp 1 x ep 2)");
  EXPECT_THAT(along_both.group(5, kEp), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(along_both.group(5, kEdp), ElementsAre(1, 5));
  const Mesh in_half_of_sp({.sp = 4, .ep = 2});
  EXPECT_EQ(in_half_of_sp.to_string(), "sp 4 (edp 2 x ep 2)");
  EXPECT_THAT(in_half_of_sp.group(1, kEp), ElementsAre(0, 1));
  EXPECT_THAT(in_half_of_sp.group(1, kEdp), ElementsAre(1, 3));
  // 2 does not divide what 3 ranks along cp are.
  const Mesh around_cp({.dp_shard = 2, .cp = 3, .ep = 2});
  EXPECT_THAT(around_cp.group(4, kEp), ElementsAre(1, 4));
  EXPECT_THAT(around_cp.group(4, kEdp), ElementsAre(3, 4, 5));
  for (const Mesh* mesh : {&along_cp, &along_both, &in_half_of_sp, &around_cp}) {
    EXPECT_EQ(fault_of(*mesh), "") << mesh->to_string();
    EXPECT_EQ(mesh->size(kEp) * mesh->size(kEdp), mesh->size(kDpShardCpSp)) << mesh->to_string();
    for (int rank = 0; rank < mesh->num_ranks(); ++rank) {
      EXPECT_EQ(mesh->group(rank, AxisSet{kEp, kEdp}), mesh->group(rank, kDpShardCpSp)) << rank;
    }
  }
}

TEST(Mesh, HasGroupsAlongEdpWhereRanksDivideExperts) {
  const MeshSizes sizes = {.dp_shard = 4, .sp = 2};
  EXPECT_FALSE(Mesh(sizes).has_groups_along(kEdp));
  EXPECT_FALSE(Mesh(sizes).has_groups_along(kDpShardCpSp));
  EXPECT_FALSE(Mesh(sizes).has_groups_along(kCp));
  EXPECT_TRUE(Mesh(sizes).has_groups_along(kDpShardCp));
  const Mesh divided({.dp_shard = 4, .sp = 2, .ep = 2});
  EXPECT_TRUE(divided.has_groups_along(kEp));
  EXPECT_TRUE(divided.has_groups_along(kEdp));
}

TEST(AxisSet, HasPiecesOfTheAxesThatExpertsDivide) {
  EXPECT_EQ((AxisSet{kEp, kEdp}), AxisSet{kDpShardCpSp});
  EXPECT_TRUE(AxisSet{kDpCpSp}.contains(kEp));
  EXPECT_FALSE(AxisSet{kDp}.contains(kEp));
  EXPECT_FALSE((AxisSet::all() - AxisSet{kEp}).contains(kDpShard));
  EXPECT_EQ((AxisSet{kDpShard, kTp} - AxisSet{kEp}).to_string(), "edp and tp");
  EXPECT_EQ((AxisSet{kEp, kTp}).to_string(), "ep and tp");
  EXPECT_EQ((AxisSet{kEdp, kCp}).to_string(), "edp and cp");
  EXPECT_EQ((AxisSet{kPp, kTp} & AxisSet{kEp, kEdp}), AxisSet());
  EXPECT_THAT(AxisSet::all().axes(), ElementsAre(kPp, kDpReplicate, kDpShard, kCp, kSp, kTp));
}

TEST(Placement, NamesNodesTheirRanksAndCoordinates) {
  const Mesh mesh({.dp_shard = 2, .cp = 2, .tp = 2});
  EXPECT_EQ(placement_text(mesh, {0, 0, 0, 0, 1, 1, 1, 1}),
            "mesh of 8 ranks: dp_shard 2 x cp 2 x tp 2\n"
            "  node 0: ranks 0-3: dp_shard 0, cp 0-1, tp 0-1\n"
            "  node 1: ranks 4-7: dp_shard 1, cp 0-1, tp 0-1\n");
  EXPECT_EQ(placement_text(Mesh({.tp = 2}), {0, 1}),
            "mesh of 2 ranks: tp 2\n"
            "  node 0: rank 0: tp 0\n"
            "  node 1: rank 1: tp 1\n");
}

TEST(Placement, NamesTheFirstOfManyNodes) {
  std::vector<int> nodes(100);
  for (int i = 0; i < 100; ++i) nodes[static_cast<size_t>(i)] = i;
  const std::string text = placement_text(Mesh({.dp_replicate = 100}), nodes);
  EXPECT_THAT(text, HasSubstr("  node 31: rank 31: dp_replicate 31\n  and 68 more nodes\n"));
}

TEST(Placement, FindsGroupsThatCrossNodes) {
  const Mesh mesh({.dp_shard = 2, .tp = 4});
  EXPECT_THAT(first_group_across_nodes(mesh, kTp, {0, 0, 0, 0, 1, 1, 1, 1}), IsEmpty());
  EXPECT_THAT(first_group_across_nodes(mesh, kDpShard, {0, 0, 0, 0, 1, 1, 1, 1}),
              ElementsAre(0, 4));
  EXPECT_THAT(first_group_across_nodes(mesh, kTp, {0, 0, 0, 0, 0, 0, 1, 1}),
              ElementsAre(4, 5, 6, 7));
}

}  // namespace
}  // namespace accelerate
