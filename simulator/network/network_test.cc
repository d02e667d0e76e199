#include "simulator/network/network.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "simulator/core/random.h"
#include "simulator/hardware/presets.h"

namespace accelerate::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = CollectiveKind;
using Algorithm = CollectiveAlgorithm;

constexpr Kind kKinds[] = {Kind::kAllReduce, Kind::kReduce,        Kind::kBroadcast,
                           Kind::kAllGather, Kind::kReduceScatter, Kind::kAllToAll,
                           Kind::kGather,    Kind::kScatter,       Kind::kBarrier};
constexpr Algorithm kAlgorithms[] = {
    Algorithm::kRing,     Algorithm::kTree,    Algorithm::kHierarchical, Algorithm::kTorus,
    Algorithm::kDirect,   Algorithm::kRingLl,  Algorithm::kTreeLl,       Algorithm::kMesh,
    Algorithm::kMeshRing, Algorithm::kMeshNhr, Algorithm::kMeshRhd,      Algorithm::kMeshPairs,
    Algorithm::kPipeline};

// With collectives in closed form, which NVIDIA's devices have under `ideal` alone; those under
// `measured` are in nccl_costs_test.cc.
ClusterSpec spec_of(const std::string& text) {
  absl::StatusOr<ClusterSpec> spec = ClusterSpec::parse(text);
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  if (spec->device) spec->device->efficiency = Efficiency::kIdeal;
  return *spec;
}

Network network_of(const std::string& text) { return Network(spec_of(text)); }

std::vector<int> range(int count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::vector<int> every(int stride, int count, int first = 0) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(first + i * stride);
  return ranks;
}

// Times are whole nanoseconds; closed forms are not.
MATCHER_P(IsWithinAThousandth, expected, "") {
  *result_listener << "off by " << std::abs(arg / expected - 1) * 100 << " %";
  return std::abs(arg - expected) <= 0.001 * expected;
}

// ---- Closed forms, with the constants written out.

constexpr int64_t kBytes = 256'000'000;

TEST(NetworkClosedForms, RingInANode) {
  const Network network = network_of("1x8:h100,link=450GB/s,link_latency=500ns");
  const double steps = 2 * 7;
  EXPECT_THAT(network.collective_ns(Kind::kAllReduce, Algorithm::kRing, range(8), kBytes),
              IsWithinAThousandth(steps * (1000 + kBytes / 8 / 450.0)));
  EXPECT_THAT(network.collective_ns(Kind::kAllGather, Algorithm::kRing, range(8), kBytes),
              IsWithinAThousandth(7 * (1000 + kBytes / 8 / 450.0)));
  EXPECT_THAT(network.collective_ns(Kind::kBroadcast, Algorithm::kRing, range(8), kBytes),
              IsWithinAThousandth(7 * 1000 + kBytes / 450.0));
  // A mesh has a ring for each of a device's links.
  EXPECT_THAT(network_of("1x8:max1550,link=64GB/s,link_latency=700ns")
                  .collective_ns(Kind::kAllReduce, Algorithm::kRing, range(8), kBytes),
              IsWithinAThousandth(steps * (700 + kBytes / 8 / (7 * 64.0))));
  // A bridge carries half of what eight ports send: rings run at half of a link.
  EXPECT_THAT(network_of("1x8:h100,node=pcie,link=20GB/s,link_latency=500ns")
                  .collective_ns(Kind::kAllReduce, Algorithm::kRing, range(8), kBytes),
              IsWithinAThousandth(steps * (1000 + kBytes / 8 / 10.0)));
}

TEST(NetworkClosedForms, RingOverNodes) {
  const Network network = network_of("4x8:h100,nic=200Gbps,nic_latency=1us,link_latency=500ns");
  // Eight rails of 25 GB/s; 3 of 31 steps leave a node, over two NICs and a switch.
  EXPECT_THAT(network.collective_ns(Kind::kAllReduce, Algorithm::kRing, range(32), kBytes),
              IsWithinAThousandth(2 * (3 * 2300 + 28 * 1000) + 2 * 31.0 / 32 * kBytes / 200));
  // Behind bridges, a ring that goes on over a NIC has one hop less in each node: seven times what
  // a bridge of eight ports carries, and two steps fewer of eight.
  const Network bridges =
      network_of("2x8:h100,node=pcie,link=20GB/s,link_latency=500ns,nic=400Gbps,nic_latency=1us");
  const auto all_reduce_ns = [&](int64_t bytes) {
    return static_cast<double>(
        bridges.collective_ns(Kind::kAllReduce, Algorithm::kRing, range(16), bytes));
  };
  EXPECT_THAT(all_reduce_ns(2 * kBytes) - all_reduce_ns(kBytes),
              IsWithinAThousandth(2 * 15.0 / 16 * kBytes / (80.0 / 7)));
  // One rail: a NIC each.
  EXPECT_THAT(network.collective_ns(Kind::kAllReduce, Algorithm::kRing, every(8, 4, 3), kBytes),
              IsWithinAThousandth(2 * 3 * (2300 + kBytes / 4 / 25.0)));
  // A single NIC a node, behind three switches.
  EXPECT_THAT(network_of("4x8:h100,nic=100Gbps,nic_latency=1us,fabric=ethernet,link_latency=500ns")
                  .collective_ns(Kind::kAllReduce, Algorithm::kRing, range(32), kBytes),
              IsWithinAThousandth(2 * (3 * 2900 + 28 * 1000) + 2 * 31.0 / 32 * kBytes / 12.5));
}

TEST(NetworkClosedForms, Tree) {
  const Network network = network_of("16x8:h100,nic_latency=1us,link_latency=500ns");
  // Four levels of nodes, a chain of eight devices in each; 400 GB/s of NICs.
  EXPECT_THAT(network.collective_ns(Kind::kAllReduce, Algorithm::kTree, range(128), kBytes),
              IsWithinAThousandth(2 * (4 * 2300 + 7 * 1000) + 2 * kBytes / (0.92 * 400)));
  EXPECT_THAT(network.collective_ns(Kind::kBroadcast, Algorithm::kTree, range(128), kBytes),
              IsWithinAThousandth(4 * 2300 + 7 * 1000 + kBytes / (0.92 * 400)));
  EXPECT_EQ(network.collective_ns(Kind::kBarrier, Algorithm::kTree, range(128), kBytes),
            2 * (4 * 2300 + 7 * 1000));
  // In one node there is only the chain, and with a member in each node only the tree.
  EXPECT_EQ(network.collective_ns(Kind::kBarrier, Algorithm::kTree, range(8), kBytes),
            2 * 7 * 1000);
  EXPECT_EQ(network.collective_ns(Kind::kBarrier, Algorithm::kTree, every(8, 16), kBytes),
            2 * 4 * 2300);
  EXPECT_EQ(network.collective_ns(Kind::kAllGather, Algorithm::kTree, range(128), kBytes), -1);
}

TEST(NetworkClosedForms, Hierarchical) {
  const Network network = network_of("4x8:h100,nic=200Gbps,nic_latency=1us,link_latency=500ns");
  const double in_node = 7 * (1000 + kBytes / 8 / 450.0);
  const double rail = 2 * 3 * (2300 + kBytes / 8 / 4 / 25.0);
  EXPECT_THAT(network.collective_ns(Kind::kAllReduce, Algorithm::kHierarchical, range(32), kBytes),
              IsWithinAThousandth(2 * in_node + rail));
  // Not in one node, not with one member a node, not with more members on one than on another.
  EXPECT_EQ(network.collective_ns(Kind::kAllReduce, Algorithm::kHierarchical, range(8), 1), -1);
  EXPECT_EQ(network.collective_ns(Kind::kAllReduce, Algorithm::kHierarchical, every(8, 4), 1), -1);
  EXPECT_EQ(network.collective_ns(Kind::kAllReduce, Algorithm::kHierarchical, range(12), 1), -1);
}

TEST(NetworkClosedForms, Torus) {
  const Network network = network_of("tpu-v4:4x4x8,link=50GB/s,link_latency=500ns");
  // The farthest chip is 4, 2 and 2 links away.
  const double latency = (4 + 2 + 2) * 500;
  // Three parts, along another axis each, with a ring each way. In every round the part that is
  // along the axis of 8 is the slowest: of a third of the bytes, of a twelfth, of a 48th.
  const double bytes = 7.0 / 8 * (1 + 1.0 / 4 + 1.0 / 16) * kBytes / 3 / 100;
  EXPECT_THAT(network.collective_ns(Kind::kAllReduce, Algorithm::kTorus, range(128), kBytes),
              IsWithinAThousandth(2 * (latency + bytes)));
  EXPECT_THAT(network.collective_ns(Kind::kReduceScatter, Algorithm::kTorus, range(128), kBytes),
              IsWithinAThousandth(latency + bytes));
  // Along one axis a torus is a ring, both ways. The parts of a ring pass all members one way,
  // those of a torus half of them each way.
  for (Algorithm algorithm : {Algorithm::kTorus, Algorithm::kRing}) {
    const double links = algorithm == Algorithm::kTorus ? 4 : 7;
    EXPECT_THAT(network.collective_ns(Kind::kAllReduce, algorithm, range(8), kBytes),
                IsWithinAThousandth(2 * (links * 500 + 7 * kBytes / 8 / 100.0)));
    EXPECT_THAT(network.collective_ns(Kind::kAllReduce, algorithm, every(32, 2), kBytes),
                IsWithinAThousandth(2 * (500 + kBytes / 2 / 50.0)));
  }
}

// Less than whole cubes of 4x4x4 are lines, with one ring each and no shorter way around.
TEST(NetworkClosedForms, TorusOfLines) {
  const Network network = network_of("tpu-v4:2x4x8,link=50GB/s,link_latency=500ns");
  const double latency = (1 + 3 + 7) * 500;
  const double bytes = 7.0 / 8 * (1 + 1.0 / 2 + 1.0 / 8) * kBytes / 3 / 50;
  EXPECT_THAT(network.collective_ns(Kind::kAllGather, Algorithm::kTorus, range(64), kBytes),
              IsWithinAThousandth(latency + bytes));
  EXPECT_THAT(network.collective_ns(Kind::kAllGather, Algorithm::kTorus, range(8), kBytes),
              IsWithinAThousandth(7 * (500 + kBytes / 8 / 50.0)));
  // Four chips on either side of the middle link send to each other.
  EXPECT_THAT(network.collective_ns(Kind::kAllToAll, Algorithm::kDirect, range(8), kBytes),
              IsWithinAThousandth(7 * 500 + 16.0 / 8 * kBytes / 50));
  EXPECT_THAT(network.route(0, 7).links, SizeIs(7));
  EXPECT_THAT(network_of("tpu-v4:4x4x8").route(0, 7).links, SizeIs(1));
  // TPU v5e joins axes of 16 alone.
  EXPECT_THAT(network_of("tpu-v5e:8x16").route(0, 15).links, SizeIs(1));
  EXPECT_THAT(network_of("tpu-v5e:8x16").route(0, 7 * 16).links, SizeIs(7));
}

TEST(NetworkClosedForms, Direct) {
  const Network node = network_of("1x8:h100,link=450GB/s,link_latency=500ns");
  EXPECT_THAT(node.collective_ns(Kind::kAllToAll, Algorithm::kDirect, range(8), kBytes),
              IsWithinAThousandth(1000 + 7.0 / 8 * kBytes / 450));
  EXPECT_THAT(node.collective_ns(Kind::kGather, Algorithm::kDirect, range(8), kBytes),
              IsWithinAThousandth(1000 + 7.0 / 8 * kBytes / 450));
  EXPECT_THAT(network_of("1x8:max1550,link=64GB/s,link_latency=700ns")
                  .collective_ns(Kind::kAllToAll, Algorithm::kDirect, range(8), kBytes),
              IsWithinAThousandth(700 + kBytes / 8 / 64.0));
  // On rails each device sends three quarters of its bytes over its own NIC.
  EXPECT_THAT(network_of("4x8:h100,nic=400Gbps,nic_latency=1us,link_latency=500ns")
                  .collective_ns(Kind::kAllToAll, Algorithm::kDirect, range(32), kBytes),
              IsWithinAThousandth(2300 + 1000 + 0.75 * kBytes / 50));
  // With one NIC a node, so do all eight over the same.
  EXPECT_THAT(network_of("4x8:h100,nic=400Gbps,nic_latency=1us,fabric=ethernet")
                  .collective_ns(Kind::kAllToAll, Algorithm::kDirect, range(32), kBytes),
              IsWithinAThousandth(2900 + 8 * 0.75 * kBytes / 50));
  // A ring of 16: of the pairs, 8*9/2 cross a link.
  EXPECT_THAT(network_of("tpu-v5e:16,link=50GB/s,link_latency=500ns")
                  .collective_ns(Kind::kAllToAll, Algorithm::kDirect, range(16), kBytes),
              IsWithinAThousandth(8 * 500 + 36.0 / 16 * kBytes / 50));
}

// By README.md in this folder, for n = 8 members on m = 2 nodes of k = 4: x = 1000 ns in a node, X
// = 2300 ns between nodes, rings over 4 NICs of 50 bytes/ns. -1: the algorithm does not apply.
TEST(NetworkClosedForms, EveryKindOverNodes) {
  const Network network =
      network_of("2x4:h100,link=450GB/s,link_latency=500ns,nic=400Gbps,nic_latency=1us");
  constexpr double kSize = 4 << 20;
  const double ring = 2300 + 6 * 1000 + 7.0 / 8 * kSize / 200;
  const double hierarchical = 2300 + 3 * 1000 + 0.75 * kSize / 450 + 0.5 * kSize / 200;
  const double chain = 2300 + 6 * 1000 + kSize / 200;
  const double tree = 2300 + 3 * 1000 + kSize / (0.92 * 200);
  // Over the root's NIC comes what the other node sends.
  const double gather = 3300 + 0.5 * kSize / 50;
  // Each device's NIC carries the half of its bytes that goes to the other node.
  const double all_to_all = 3300 + 0.5 * kSize / 50;
  struct Row {
    Kind kind;
    double by_ring, by_tree, by_hierarchy, direct;
  };
  for (const Row& row :
       {Row{Kind::kAllReduce, 2 * ring, 2 * tree, 2 * hierarchical, -1},
        Row{Kind::kReduce, chain, tree, -1, -1}, Row{Kind::kBroadcast, chain, tree, -1, -1},
        Row{Kind::kAllGather, ring, -1, hierarchical, -1},
        Row{Kind::kReduceScatter, ring, -1, hierarchical, -1},
        Row{Kind::kAllToAll, -1, -1, -1, all_to_all}, Row{Kind::kGather, -1, -1, -1, gather},
        Row{Kind::kScatter, -1, -1, -1, gather},
        Row{Kind::kBarrier, 2 * 8300, 2 * 5300, 2 * 5300, -1}}) {
    const std::pair<Algorithm, double> expected[] = {{Algorithm::kRing, row.by_ring},
                                                     {Algorithm::kTree, row.by_tree},
                                                     {Algorithm::kHierarchical, row.by_hierarchy},
                                                     {Algorithm::kTorus, -1},
                                                     {Algorithm::kDirect, row.direct}};
    double fastest = std::numeric_limits<double>::infinity();
    for (const auto& [algorithm, ns] : expected) {
      EXPECT_NEAR(network.collective_ns(row.kind, algorithm, range(8), 4 << 20), ns, 1)
          << static_cast<int>(row.kind) << " " << to_string(algorithm);
      if (ns >= 0) fastest = std::min(fastest, ns);
    }
    EXPECT_NEAR(network.collective(row.kind, range(8), 4 << 20).ns, fastest, 1)
        << static_cast<int>(row.kind);
  }
}

// By README.md, for two axes of 16 chips, each a ring in both directions.
TEST(NetworkClosedForms, EveryKindOnATorus) {
  const Network network = network_of("tpu-v5e:16x16,link=50GB/s,link_latency=500ns");
  constexpr double kSize = 4 << 20;
  // Four links, all of them busy.
  const double phases = (8 + 8) * 500 + 255.0 / 256 * kSize / 200;
  const double chain = (8 + 8) * 500 + kSize / 100;
  // On a ring of 16, 36 messages cross the busiest link; the farthest chip is eight links away on
  // either axis.
  const double all_to_all = 16 * 500 + 36.0 / 16 * kSize / 50;
  // Over one link of its second axis the root gets the messages of eight columns of 16.
  const double gather = 16 * 500 + 128.0 / 256 * kSize / 50;
  const std::tuple<Kind, Algorithm, double> rows[] = {
      {Kind::kAllReduce, Algorithm::kTorus, 2 * phases},
      {Kind::kReduce, Algorithm::kTorus, chain},
      {Kind::kBroadcast, Algorithm::kTorus, chain},
      {Kind::kAllGather, Algorithm::kTorus, phases},
      {Kind::kReduceScatter, Algorithm::kTorus, phases},
      {Kind::kAllToAll, Algorithm::kDirect, all_to_all},
      {Kind::kGather, Algorithm::kDirect, gather},
      {Kind::kScatter, Algorithm::kDirect, gather},
      {Kind::kBarrier, Algorithm::kTorus, 2 * (8 + 8) * 500}};
  for (const auto& [kind, algorithm, ns] : rows) {
    EXPECT_NEAR(network.collective_ns(kind, algorithm, range(256), 4 << 20), ns, 1)
        << static_cast<int>(kind);
    EXPECT_EQ(network.collective_ns(kind, Algorithm::kTree, range(256), 4 << 20), -1);
    EXPECT_EQ(network.collective_ns(kind, Algorithm::kHierarchical, range(256), 4 << 20), -1);
  }
}

// The load of the links by a round of messages along their routes. The closed form must not be
// below it, because no order of messages is faster than the busiest link.
double busiest_link_ns(const Network& network, const std::vector<int>& ranks, double message,
                       const std::function<bool(int, int)>& sends) {
  std::map<int, double> load;
  for (int source : ranks) {
    for (int target : ranks) {
      if (!sends(source, target)) continue;
      for (int link : network.route(source, target).links) load[link] += message;
    }
  }
  double busiest = 0;
  for (const auto& [link, bytes] : load) {
    busiest = std::max(busiest, bytes / network.link_bytes_per_second()[link] * 1e9);
  }
  return busiest;
}

TEST(Network, MovesDirectMessagesAsFastAsTheirRoutesAllow) {
  for (const char* text :
       {"1x8:h100", "1x8:mi300x", "1x8:h100,node=pcie", "4x8:h100", "4x8:mi300x",
        "4x8:h100,node=pcie", "4x8:h100,fabric=ethernet", "4x8:v100", "4x8:h100,nics=4",
        "tpu-v4:4x4x4", "tpu-v4:2x4x8", "tpu-v5e:3x5", "tpu-v4:16", "tpu-v5e:16x16"}) {
    const Network network = network_of(text);
    const std::vector<int> all = range(spec_of(text).world_size());
    const double n = static_cast<double>(all.size());
    const double message = kBytes / n;
    EXPECT_THAT(
        network.collective_ns(Kind::kAllToAll, Algorithm::kDirect, all, kBytes) -
            network.collective_ns(Kind::kAllToAll, Algorithm::kDirect, all, 0),
        IsWithinAThousandth(busiest_link_ns(network, all, message, [](int, int) { return true; })))
        << text;
    EXPECT_THAT(network.collective_ns(Kind::kGather, Algorithm::kDirect, all, kBytes) -
                    network.collective_ns(Kind::kGather, Algorithm::kDirect, all, 0),
                IsWithinAThousandth(
                    busiest_link_ns(network, all, message, [](int, int to) { return to == 0; })))
        << text;
  }
}

// ---- Choice.

TEST(Network, ChoosesByTheSizeOfTheMessage) {
  const Network network = network_of("32x8:h100");
  EXPECT_EQ(network.collective(Kind::kAllReduce, range(256), 1024).algorithm, Algorithm::kTree);
  EXPECT_EQ(network.collective(Kind::kAllReduce, range(256), 4'000'000'000).algorithm,
            Algorithm::kRing);
  EXPECT_EQ(
      network_of("2x8:h100,nic=10Gbps").collective(Kind::kAllReduce, range(16), kBytes).algorithm,
      Algorithm::kHierarchical);
  EXPECT_EQ(network_of("tpu-v4:4x4x4").collective(Kind::kAllReduce, range(64), kBytes).algorithm,
            Algorithm::kTorus);
  EXPECT_EQ(network.collective(Kind::kAllToAll, range(256), kBytes).algorithm, Algorithm::kDirect);
}

TEST(Network, TakesTheFastestAndTheFirstOfEquals) {
  for (const char* text : {"4x4:h100", "2x8:ascend910b", "6x8:ascend910b", "3x8:gaudi2",
                           "2x8:mi300x", "1x4:mi300x", "3x5:cpu", "tpu-v4:2x3x4"}) {
    const Network network = network_of(text);
    const std::vector<int> all = range(spec_of(text).world_size());
    for (Kind kind : kKinds) {
      for (int64_t bytes : {0, 1'000, 1'000'000, 1'000'000'000}) {
        const CollectiveTime best = network.collective(kind, all, bytes);
        EXPECT_NE(best.algorithm, Algorithm::kNone);
        for (Algorithm algorithm : kAlgorithms) {
          const int64_t ns = network.collective_ns(kind, algorithm, all, bytes);
          if (ns < 0) continue;
          EXPECT_LE(best.ns, ns);
          EXPECT_TRUE(ns > best.ns || algorithm >= best.algorithm);
        }
      }
    }
  }
  EXPECT_EQ(network_of("1x2:h100").collective(Kind::kBroadcast, range(2), 100).algorithm,
            Algorithm::kRing);
}

TEST(Network, TakesNoTimeAloneOrWithoutHardware) {
  const Network network = network_of("2x4:h100");
  const CollectiveTime alone = network.collective(Kind::kAllReduce, {3}, kBytes);
  EXPECT_EQ(alone.ns, 0);
  EXPECT_EQ(alone.algorithm, Algorithm::kNone);
  const Network none = network_of("2x4");
  EXPECT_EQ(none.collective(Kind::kAllReduce, range(8), kBytes).ns, 0);
  EXPECT_THAT(none.route(0, 7).links, IsEmpty());
  EXPECT_EQ(none.route(0, 7).latency_ns, 0);
  EXPECT_THAT(none.link_bytes_per_second(), IsEmpty());
}

TEST(Network, SurvivesAbsurdSizes) {
  const Network network = network_of("2x4:h100,nic=1B/s");
  const int64_t ns =
      network.collective(Kind::kAllReduce, range(8), std::numeric_limits<int64_t>::max()).ns;
  EXPECT_GT(ns, int64_t{1} << 60);
}

// ---- Metamorphic relations, which hold for all constants.

// Groups of many shapes over 4 x 8 or 32 ranks.
std::vector<std::vector<int>> groups_of_32() {
  std::vector<std::vector<int>> groups = {
      range(32),      range(8),     range(2),         range(12),   every(8, 4),
      every(8, 4, 5), every(2, 16), every(16, 2),     every(4, 8), {0, 9},
      {0, 9, 18, 27}, {1, 2, 11},   {0, 1, 2, 3, 31}, {7, 8}};
  DeterministicRandom random(5);
  for (int i = 0; i < 20; ++i) {
    std::vector<int> group;
    for (int rank = 0; rank < 32; ++rank) {
      if (random.below(3) == 0) group.push_back(rank);
    }
    if (group.size() > 1) groups.push_back(group);
  }
  return groups;
}

const std::vector<std::string>& clusters_of_32() {
  static const auto* all = new std::vector<std::string>{"4x8:h100",
                                                        "4x8:h100,nics=2",
                                                        "4x8:h100,nics=16",
                                                        "4x8:a100,fabric=ethernet",
                                                        "4x8:mi300x",
                                                        "4x8:gaudi2",
                                                        "4x8:ascend910b",
                                                        "4x8:ascend910b,nics=4",
                                                        "4x8:max1550",
                                                        "4x8:h100,node=pcie",
                                                        "4x8:v100,node=pcie,fabric=rails",
                                                        "4x8:v100",
                                                        "4x8:cpu",
                                                        "4x8:mi300x,fabric=fat-tree",
                                                        "tpu-v4:2x4x4",
                                                        "tpu-v5e:4x8",
                                                        "tpu-v4:32",
                                                        "tpu-v5p:2x2x8",
                                                        "tpu-v5e:2x16"};
  return *all;
}

void expect_never_faster(const ClusterSpec& slow, const ClusterSpec& fast, const std::string& why) {
  const Network slow_network(slow);
  const Network fast_network(fast);
  for (const std::vector<int>& group : groups_of_32()) {
    for (Kind kind : kKinds) {
      for (int64_t bytes : {0, 1'000, 1'000'000, 1'000'000'000}) {
        EXPECT_GE(slow_network.collective(kind, group, bytes).ns,
                  fast_network.collective(kind, group, bytes).ns)
            << why << ": " << slow.to_string();
        for (Algorithm algorithm : kAlgorithms) {
          EXPECT_GE(slow_network.collective_ns(kind, algorithm, group, bytes),
                    fast_network.collective_ns(kind, algorithm, group, bytes))
              << why << ": " << slow.to_string() << " " << to_string(algorithm);
        }
      }
    }
  }
}

TEST(NetworkRelations, MoreBandwidthIsNeverSlower) {
  for (const std::string& text : clusters_of_32()) {
    const ClusterSpec spec = spec_of(text);
    for (double factor : {1.01, 2.0, 100.0}) {
      ClusterSpec links = spec;
      links.node_link.bytes_per_second *= factor;
      expect_never_faster(spec, links, "faster links");
      ClusterSpec nics = spec;
      nics.nic.bytes_per_second *= factor;
      expect_never_faster(spec, nics, "faster NICs");
    }
  }
}

TEST(NetworkRelations, MoreLatencyIsNeverFaster) {
  for (const std::string& text : clusters_of_32()) {
    const ClusterSpec spec = spec_of(text);
    for (int64_t more : {1, 500, 100'000}) {
      ClusterSpec links = spec;
      links.node_link.latency_ns += more;
      expect_never_faster(links, spec, "slower links");
      ClusterSpec nics = spec;
      nics.nic.latency_ns += more;
      expect_never_faster(nics, spec, "slower NICs");
    }
  }
}

TEST(NetworkRelations, MoreBytesAreNeverFaster) {
  for (const std::string& text : clusters_of_32()) {
    const Network network = network_of(text);
    for (const std::vector<int>& group : groups_of_32()) {
      for (Kind kind : kKinds) {
        int64_t before = 0;
        for (int64_t bytes = 1; bytes < int64_t{1} << 40; bytes *= 3) {
          const int64_t ns = network.collective(kind, group, bytes).ns;
          EXPECT_GE(ns, before) << text;
          EXPECT_GT(ns, 0) << text;
          before = ns;
        }
      }
    }
  }
}

TEST(NetworkRelations, AnotherTopologyTakesAnotherTime) {
  std::map<int64_t, std::string> times;
  for (const char* text :
       {"1x32:h100", "4x8:h100", "8x4:h100", "4x8:h100,fabric=fat-tree", "4x8:h100,fabric=ethernet",
        "4x8:h100,nics=4", "4x8:h100,node=mesh", "4x8:h100,node=pcie", "tpu-v4:32", "tpu-v4:4x8",
        "tpu-v4:2x4x4", "tpu-v4:2x2x8"}) {
    const int64_t ns = network_of(text).collective(Kind::kAllReduce, range(32), kBytes).ns;
    const auto [other, inserted] = times.emplace(ns, text);
    EXPECT_TRUE(inserted) << text << " and " << other->second << ": " << ns << " ns";
  }
}

// Two ranks to a NIC: groups along one axis that cross nodes have half of it each.
TEST(Network, DividesNicsAmongTheGroupsOfAnAxis) {
  const auto ns = [](const Network& network, const std::vector<int>& ranks, Beside beside) {
    return network.collective(Kind::kAllReduce, ranks, kBytes, nccl::Reduction::kInSwitches, beside)
        .ns;
  };
  const Network shared = network_of("4x8:h100,fabric=fat-tree,nics=4");
  const Network halved = network_of("4x8:h100,fabric=fat-tree,nics=4,nic=200Gbps");
  const std::vector<int> across = every(8, 4);
  EXPECT_EQ(ns(shared, across, Beside::kItsAxis), ns(halved, across, Beside::kNothing));
  EXPECT_GT(ns(shared, across, Beside::kItsAxis), 1.9 * ns(shared, across, Beside::kNothing));
  // Both ranks of each NIC are members, or no NIC is used, or each rank has its own.
  EXPECT_EQ(ns(shared, range(32), Beside::kItsAxis), ns(shared, range(32), Beside::kNothing));
  EXPECT_EQ(ns(shared, range(8), Beside::kItsAxis), ns(shared, range(8), Beside::kNothing));
  const Network rails = network_of("4x8:h100");
  EXPECT_EQ(ns(rails, across, Beside::kItsAxis), ns(rails, across, Beside::kNothing));
  const Network ethernet = network_of("4x8:h100,fabric=ethernet");
  EXPECT_GT(ns(ethernet, across, Beside::kItsAxis), 7 * ns(ethernet, across, Beside::kNothing));
  for (const char* text : {"4x8:h100,efficiency=ideal,nics=16", "tpu-v4:4x8"}) {
    const Network other = network_of(text);
    EXPECT_EQ(ns(other, across, Beside::kItsAxis), ns(other, across, Beside::kNothing)) << text;
  }
}

TEST(NetworkRelations, ScatteredMembersAreSlowerThanNeighbours) {
  const Network network = network_of("4x8:h100");
  for (Kind kind : {Kind::kAllReduce, Kind::kAllGather, Kind::kBroadcast, Kind::kAllToAll}) {
    for (const std::vector<int>& group :
         {std::vector<int>{0, 9, 18, 27}, {0, 8, 16, 24}, {0, 11, 20, 31}}) {
      EXPECT_GT(network.collective(kind, group, kBytes).ns,
                network.collective(kind, range(4), kBytes).ns);
    }
  }
  // Members on different rails pay for changing them.
  EXPECT_GT(network.collective(Kind::kAllReduce, {0, 9, 18, 27}, 1000).ns,
            network.collective(Kind::kAllReduce, {0, 8, 16, 24}, 1000).ns);
}

// ---- Routes.

TEST(NetworkRoutes, CrossTheLinksOfTheFabric) {
  const Network nvswitch = network_of("2x4:h100,link_latency=500ns,nic_latency=1us");
  EXPECT_THAT(nvswitch.route(1, 3).links, ElementsAre(2, 7));
  EXPECT_EQ(nvswitch.route(1, 3).latency_ns, 1000);
  EXPECT_THAT(nvswitch.route(1, 1).links, IsEmpty());
  // The same rail: NIC to NIC.
  EXPECT_THAT(nvswitch.route(1, 5).links, SizeIs(2));
  EXPECT_EQ(nvswitch.route(1, 5).latency_ns, 2300);
  // Another: first to local rank 3, then over its NIC.
  const Network::Route detour = nvswitch.route(1, 7);
  EXPECT_THAT(detour.links, SizeIs(4));
  EXPECT_EQ(detour.links[0], 2);
  EXPECT_EQ(detour.links[1], 7);
  EXPECT_EQ(detour.links[2], nvswitch.route(3, 7).links[0]);
  EXPECT_EQ(detour.latency_ns, 3300);

  EXPECT_THAT(network_of("2x4:mi300x").route(0, 3).links, SizeIs(1));
  EXPECT_THAT(network_of("2x4:h100,node=pcie").route(0, 3).links, SizeIs(3));
  EXPECT_THAT(network_of("2x4:h100,node=pcie").route(0, 7).links, SizeIs(4));
  EXPECT_EQ(network_of("2x4:v100,nic_latency=1us").route(0, 7).latency_ns, 2900);
  EXPECT_THAT(network_of("tpu-v4:4x4x4").route(0, 63).links, SizeIs(3));
}

TEST(NetworkRoutes, ShareANicWhereANodeHasFew) {
  const Network network = network_of("2x8:v100,nics=2");
  const auto nic = [&](int rank) { return network.route(rank, 15).links[0]; };
  EXPECT_EQ(nic(0), nic(3));
  EXPECT_NE(nic(0), nic(4));
  EXPECT_EQ(nic(4), nic(7));
}

TEST(NetworkRoutes, NameLinksThatHaveABandwidth) {
  for (const Preset& preset : presets()) {
    for (const char* shape : {"1x1", "1x2", "3x5", "2x8"}) {
      const ClusterSpec spec = spec_of(absl::StrCat(shape, ":", preset.device.name));
      const Network network(spec);
      for (int source = 0; source < spec.world_size(); ++source) {
        for (int target = 0; target < spec.world_size(); ++target) {
          const Network::Route route = network.route(source, target);
          EXPECT_EQ(route.links.empty(), source == target);
          std::set<int> links(route.links.begin(), route.links.end());
          EXPECT_EQ(links.size(), route.links.size());  // None twice.
          for (int link : links) {
            ASSERT_LT(link, network.link_bytes_per_second().size());
            EXPECT_GT(network.link_bytes_per_second()[link], 0);
          }
        }
      }
    }
  }
}

TEST(NetworkRoutes, KeepAMeshOfThousandsSmall) {
  const Network network = network_of("1x4096:mi300x");
  EXPECT_THAT(network.route(0, 4095).links, ElementsAre(0));
  EXPECT_THAT(network.route(4095, 0).links, ElementsAre(1));
  EXPECT_THAT(network.route(0, 4095).links, ElementsAre(0));
  EXPECT_THAT(network.link_bytes_per_second(), SizeIs(2));
}

TEST(Network, AnswersForThousandsOfRanksAtOnce) {
  for (const char* text : {"2048x8:h100", "tpu-v4:16x16x16", "tpu-v4:4096", "1x16384:cpu"}) {
    const Network network = network_of(text);
    const std::vector<int> all = range(network.spec().world_size());
    int64_t total = 0;
    for (int i = 0; i < 10'000; ++i) total += network.collective(Kind::kAllReduce, all, i).ns;
    EXPECT_GT(total, 0);
  }
}

}  // namespace
}  // namespace accelerate::simulator
