#include "simulator/network/link_use.h"

#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace accelerate::simulator {
namespace {

using Kind = CollectiveKind;
using Algorithm = CollectiveAlgorithm;

ClusterSpec spec_of(const std::string& text) {
  absl::StatusOr<ClusterSpec> spec = ClusterSpec::parse(text);
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  return *spec;
}

std::vector<int> range(int count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

LinkBytes sum_of(const std::vector<LinkBytes>& use) {
  return std::accumulate(use.begin(), use.end(), LinkBytes{},
                         [](LinkBytes sum, const LinkBytes& each) { return sum += each; });
}

void expect_bytes(const LinkBytes& bytes, double node_out, double node_in, double nic_out,
                  double nic_in) {
  EXPECT_NEAR(bytes.node_out, node_out, 1e-12);
  EXPECT_NEAR(bytes.node_in, node_in, 1e-12);
  EXPECT_NEAR(bytes.nic_out, nic_out, 1e-12);
  EXPECT_NEAR(bytes.nic_in, nic_in, 1e-12);
}

TEST(LinkUse, OfARingIsWhatEachMemberPassesOn) {
  const ClusterSpec node = spec_of("1x4:h100,efficiency=ideal");
  for (const LinkBytes& each : link_use(node, Kind::kAllReduce, Algorithm::kRing, range(4))) {
    expect_bytes(each, 1.5, 1.5, 0, 0);
  }
  for (const LinkBytes& each : link_use(node, Kind::kAllGather, Algorithm::kRing, range(4))) {
    expect_bytes(each, 0.75, 0.75, 0, 0);
  }
  // Three hops for four members.
  for (const LinkBytes& each : link_use(node, Kind::kBroadcast, Algorithm::kRing, range(4))) {
    expect_bytes(each, 0.75, 0.75, 0, 0);
  }
  // On two nodes three of four hops stay in the node, and the fourth leaves it.
  const ClusterSpec nodes = spec_of("2x4:h100,efficiency=ideal");
  for (const LinkBytes& each : link_use(nodes, Kind::kAllReduce, Algorithm::kRing, range(8))) {
    expect_bytes(each, 1.75 * 3 / 4, 1.75 * 3 / 4, 1.75 / 4, 1.75 / 4);
  }
}

TEST(LinkUse, OfATreeIsTwiceTheTensorOnEachEdge) {
  const ClusterSpec nodes = spec_of("4x2:h100,efficiency=ideal");
  const LinkBytes all = sum_of(link_use(nodes, Kind::kAllReduce, Algorithm::kTree, range(8)));
  expect_bytes(all, 2 * 4, 2 * 4, 2 * 3, 2 * 3);
}

TEST(LinkUse, InSwitchesIsAMembersTensorOnceAndAPartOfTheSums) {
  const ClusterSpec node = spec_of("1x8:h100,efficiency=measured");
  expect_bytes(link_use(node, Kind::kAllReduce, Algorithm::kNvls, range(8))[3], 1.125, 1.125, 0, 0);
  expect_bytes(link_use(node, Kind::kAllGather, Algorithm::kNvls, range(8))[3], 0.125, 1, 0, 0);
  expect_bytes(link_use(node, Kind::kReduceScatter, Algorithm::kNvls, range(8))[3], 1, 0.125, 0, 0);
  // Each node sends the tensor up and down a tree of four nodes: six times over four nodes.
  const ClusterSpec nodes = spec_of("4x8:h100,efficiency=measured");
  const LinkBytes all = sum_of(link_use(nodes, Kind::kAllReduce, Algorithm::kNvlsTree, range(32)));
  EXPECT_NEAR(all.nic_out, 6, 1e-12);
}

TEST(LinkUse, OfAnAllToAllGoesToEachOther) {
  const ClusterSpec fat_tree = spec_of("2x4:h100,efficiency=ideal,fabric=fat-tree");
  for (const LinkBytes& each : link_use(fat_tree, Kind::kAllToAll, Algorithm::kDirect, range(8))) {
    expect_bytes(each, 3.0 / 8, 3.0 / 8, 0.5, 0.5);
  }
  // On rails three of four bytes for the other node are first handed to the rail's device.
  const ClusterSpec rails = spec_of("2x4:h100,efficiency=ideal,fabric=rails");
  for (const LinkBytes& each : link_use(rails, Kind::kAllToAll, Algorithm::kDirect, range(8))) {
    expect_bytes(each, 3.0 / 8 + 0.5 * 3 / 4, 3.0 / 8 + 0.5 * 3 / 4, 0.5, 0.5);
  }
}

TEST(LinkUse, OfAGatherIsAtTheRoot) {
  const ClusterSpec nodes = spec_of("2x4:h100,efficiency=ideal");
  const std::vector<LinkBytes> gather =
      link_use(nodes, Kind::kGather, Algorithm::kDirect, range(8), /*root=*/5);
  expect_bytes(gather[5], 0, 3.0 / 8, 0, 4.0 / 8);
  expect_bytes(gather[4], 1.0 / 8, 0, 0, 0);
  expect_bytes(gather[0], 0, 0, 1.0 / 8, 0);
  const std::vector<LinkBytes> scatter =
      link_use(nodes, Kind::kScatter, Algorithm::kDirect, range(8), /*root=*/5);
  expect_bytes(scatter[5], 3.0 / 8, 0, 4.0 / 8, 0);
  expect_bytes(scatter[0], 0, 0, 0, 1.0 / 8);
}

TEST(LinkUse, BehindAHostBridgeGoesThroughTheDevicesOnlyLink) {
  const ClusterSpec pcie = spec_of("2x2:h100,efficiency=ideal,node=pcie");
  for (const LinkBytes& each : link_use(pcie, Kind::kAllGather, Algorithm::kRing, range(4))) {
    expect_bytes(each, 0.75, 0.75, 0.375, 0.375);
    EXPECT_NEAR(each.bridge, 0.375, 1e-12);
  }
}

TEST(LinkUse, OnATorusCountsEachLinkOfTheWay) {
  const ClusterSpec torus = spec_of("tpu-v5e:16x16");
  // 16 members of an axis, then 16 of the other with a 16th each.
  for (const LinkBytes& each : link_use(torus, Kind::kAllGather, Algorithm::kTorus, range(256))) {
    EXPECT_NEAR(each.node_out, 255.0 / 256, 1e-12);
  }
  // On a ring of 16 a message crosses four links in the mean.
  for (const LinkBytes& each : link_use(torus, Kind::kAllToAll, Algorithm::kDirect, range(256))) {
    EXPECT_NEAR(each.node_out, 8, 1e-12);
  }
  // On a line of four, as many bytes for all members, but 0, 1, 2 or 3 links, 1.25 in the mean.
  const ClusterSpec line = spec_of("tpu-v4:4");
  EXPECT_NEAR(link_use(line, Kind::kAllGather, Algorithm::kTorus, range(4))[0].node_out, 0.75,
              1e-12);
  EXPECT_NEAR(link_use(line, Kind::kAllToAll, Algorithm::kDirect, range(4))[0].node_out, 1.25,
              1e-12);
}

TEST(LinkUse, OfAMeshIsAPartToEachOther) {
  const ClusterSpec node = spec_of("1x4:ascend910b");
  expect_bytes(link_use(node, Kind::kAllReduce, Algorithm::kMesh, range(4))[1], 1.5, 1.5, 0, 0);
  // A broadcast: a scatter, of which a member has a quarter of three quarters, and an all-gather.
  expect_bytes(link_use(node, Kind::kBroadcast, Algorithm::kMesh, range(4))[1], 0.9375, 0.9375, 0,
               0);
  // An all-gather in the node of four of eight parts, then of everything between nodes; by pipeline
  // of a part at a time between nodes.
  const ClusterSpec nodes = spec_of("2x4:ascend910b");
  expect_bytes(link_use(nodes, Kind::kAllGather, Algorithm::kMeshNhr, range(8))[1], 0.375, 0.375,
               0.5, 0.5);
  expect_bytes(link_use(nodes, Kind::kAllGather, Algorithm::kPipeline, range(8))[1], 0.75, 0.75,
               0.125, 0.125);
  expect_bytes(link_use(nodes, Kind::kAllReduce, Algorithm::kMeshNhr, range(8))[1], 1.5, 1.5, 0.25,
               0.25);
  const ClusterSpec gaudis = spec_of("2x4:gaudi2");
  expect_bytes(link_use(gaudis, Kind::kBroadcast, Algorithm::kMeshPairs, range(8))[1], 1.5, 1.5,
               0.25, 0.25);
}

// What leaves somewhere arrives somewhere, and every member gets what it has not.
TEST(LinkUse, LosesNothing) {
  constexpr Algorithm kAlgorithms[] = {
      Algorithm::kRing,     Algorithm::kTree,     Algorithm::kHierarchical, Algorithm::kNvls,
      Algorithm::kNvlsTree, Algorithm::kPat,      Algorithm::kTreeLl,       Algorithm::kRingLl,
      Algorithm::kMeshNhr,  Algorithm::kPipeline, Algorithm::kMeshPairs};
  for (const char* text : {"1x8:h100", "4x8:h100", "2x4:h100,node=pcie", "3x4:mi300x", "8x1:h100",
                           "2x8:h100,fabric=ethernet"}) {
    const ClusterSpec spec = spec_of(text);
    const auto n = static_cast<double>(spec.world_size());
    const auto m = static_cast<double>(spec.num_nodes);
    for (const Algorithm algorithm : kAlgorithms) {
      for (const Kind kind : {Kind::kAllReduce, Kind::kAllGather, Kind::kReduceScatter}) {
        const LinkBytes all = sum_of(link_use(spec, kind, algorithm, range(spec.world_size())));
        SCOPED_TRACE(absl::StrCat(text, " ", to_string(algorithm)));
        EXPECT_NEAR(all.nic_out, all.nic_in, 1e-9);
        EXPECT_GE(all.nic_in + 1e-9, m > 1 ? m - 1 : 0);
        // Switches multiply what one member sends.
        const bool multiplies = algorithm == Algorithm::kNvls || algorithm == Algorithm::kNvlsTree;
        if (!multiplies) EXPECT_NEAR(all.node_out, all.node_in, 1e-9);
        if (kind == Kind::kAllGather) EXPECT_GE(all.node_in + all.nic_in + 1e-9, n - 1);
      }
    }
  }
}

TEST(LinkUse, OfAMessageIsItsRoute) {
  const ClusterSpec rails = spec_of("2x4:h100,efficiency=ideal");
  auto use = message_link_use(rails, 0, 3);
  ASSERT_EQ(use.size(), 2u);
  expect_bytes(use[0].second, 1, 0, 0, 0);
  expect_bytes(use[1].second, 0, 1, 0, 0);
  use = message_link_use(rails, 1, 5);
  ASSERT_EQ(use.size(), 2u);
  EXPECT_EQ(use[0].first, 1);
  expect_bytes(use[0].second, 0, 0, 1, 0);
  EXPECT_EQ(use[1].first, 5);
  expect_bytes(use[1].second, 0, 0, 0, 1);
  // To another rail, over the device of the node that is on it.
  use = message_link_use(rails, 1, 6);
  ASSERT_EQ(use.size(), 4u);
  EXPECT_EQ(use[1].first, 2);
  EXPECT_EQ(use[2].first, 2);
  expect_bytes(use[2].second, 0, 0, 1, 0);
  EXPECT_TRUE(message_link_use(rails, 2, 2).empty());
  use = message_link_use(spec_of("tpu-v4:4x4x4"), 0, 40);
  ASSERT_EQ(use.size(), 2u);
  expect_bytes(use[0].second, 4, 0, 0, 0);
}

TEST(LinkUse, OfOneMemberIsNone) {
  const ClusterSpec spec = spec_of("1x8:h100");
  const int alone[] = {3};
  expect_bytes(link_use(spec, Kind::kAllReduce, Algorithm::kRing, alone)[0], 0, 0, 0, 0);
  expect_bytes(sum_of(link_use(spec, Kind::kBarrier, Algorithm::kRing, range(8))), 0, 0, 0, 0);
}

}  // namespace
}  // namespace accelerate::simulator
