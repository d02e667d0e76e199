#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simulator/hardware/presets.h"
#include "simulator/network/explain_collective.h"
#include "simulator/network/network.h"

namespace accelerate::simulator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Kind = CollectiveKind;
using Algorithm = CollectiveAlgorithm;

ClusterSpec spec_of(const std::string& text) {
  absl::StatusOr<ClusterSpec> spec = ClusterSpec::parse(text);
  EXPECT_TRUE(spec.ok()) << spec.status().message();
  return *spec;
}

Network network_of(const std::string& text) { return Network(spec_of(text)); }

std::vector<int> range(int count, int stride = 1) {
  std::vector<int> ranks(count);
  for (int i = 0; i < count; ++i) ranks[i] = i * stride;
  return ranks;
}

struct Expected {
  Kind kind;
  Algorithm algorithm;
  double ns;
};

void expect_times(const Network& network, const std::vector<int>& ranks, int64_t bytes,
                  const std::vector<Expected>& rows) {
  for (const Expected& row : rows) {
    EXPECT_NEAR(network.collective_ns(row.kind, row.algorithm, ranks, bytes), row.ns, 1)
        << static_cast<int>(row.kind) << " " << to_string(row.algorithm);
  }
}

TEST(CollectiveLibrary, IsThatOfTheDeviceInItsOwnFabric) {
  const std::pair<const char*, CollectiveLibrary> rows[] = {
      {"2x8:mi300x", CollectiveLibrary::kRccl},
      {"2x8:mi300x,fabric=ethernet", CollectiveLibrary::kRccl},
      {"2x8:mi300x,node=switch", CollectiveLibrary::kAny},
      {"2x8:ascend910b", CollectiveLibrary::kHccl},
      {"2x8:ascend910b,node=pcie", CollectiveLibrary::kAny},
      {"2x8:gaudi2", CollectiveLibrary::kHcl},
      {"2x6:max1550", CollectiveLibrary::kAny},
      {"2x8:h100,node=mesh", CollectiveLibrary::kAny},
      {"tpu-v4:2x2x2", CollectiveLibrary::kAny},
      {"2x8", CollectiveLibrary::kAny}};
  for (const auto& [text, library] : rows) {
    EXPECT_EQ(collective_library(spec_of(text)), library) << text;
  }
  // Without its library a device has those of any.
  EXPECT_GT(network_of("2x8:mi300x,node=switch")
                .collective_ns(Kind::kAllReduce, Algorithm::kHierarchical, range(16), 1),
            0);
}

// ---- HCCL, by its documents: alpha + n beta, with a step and a link of 1000 ns and 25 bytes/ns in
// a node, 2300 ns and 10 bytes/ns between nodes.

constexpr char kHcclLinks[] = ",link=25GB/s,link_latency=1us,nic=80Gbps,nic_latency=1us";
constexpr double kSize = 8 << 20;

TEST(Hccl, IsAMeshInANode) {
  const Network network = network_of(std::string("1x8:ascend910b") + kHcclLinks);
  const double step = 1000 + kSize / 8 / 25;
  expect_times(network, range(8), 8 << 20,
               {{Kind::kAllGather, Algorithm::kMesh, step},
                {Kind::kReduceScatter, Algorithm::kMesh, step},
                {Kind::kAllReduce, Algorithm::kMesh, 2 * step},
                {Kind::kBroadcast, Algorithm::kMesh, 2 * step},
                {Kind::kReduce, Algorithm::kMesh, 2 * step},
                {Kind::kBarrier, Algorithm::kMesh, 2000},
                {Kind::kGather, Algorithm::kDirect, step},
                {Kind::kScatter, Algorithm::kDirect, step},
                {Kind::kAllToAll, Algorithm::kDirect, step},
                {Kind::kAllReduce, Algorithm::kRing, -1},
                {Kind::kAllReduce, Algorithm::kMeshRing, -1},
                {Kind::kAllReduce, Algorithm::kPipeline, -1}});
  EXPECT_EQ(network.collective(Kind::kAllReduce, range(8), 8 << 20).name(), "mesh");
}

TEST(Hccl, GoesOnBetweenNodes) {
  const Network network = network_of(std::string("6x8:ascend910b") + kHcclLinks);
  constexpr double m = 6;
  constexpr double n = 48;
  const double all = kSize / 10;          // over a NIC
  const double in_node = kSize / n / 25;  // a member's part over a link
  const auto gather = [&](double steps, double bytes) {
    return 1000 + steps * 2300 + in_node + bytes * all;
  };
  const auto reduce = [&](double steps, double bytes) {
    return 2 * (1000 + kSize / 8 / 25 + steps * 2300 + bytes * all / 8);
  };
  const auto root = [&](double steps, double bytes) {
    return 2 * (1000 + kSize / 8 / 25) + steps * 2300 + bytes * all / 8;
  };
  const double pipeline = 5 * (2300 + kSize / n / 10) + 1000 + in_node;
  // Two nodes of the six are merged with others: of four, two steps.
  expect_times(network, range(48), 8 << 20,
               {{Kind::kAllGather, Algorithm::kMeshRing, gather(5, 5 / m)},
                {Kind::kReduceScatter, Algorithm::kMeshNhr, gather(3, 5 / m)},
                {Kind::kAllGather, Algorithm::kMeshRhd, gather(3, 11 / m)},
                {Kind::kAllGather, Algorithm::kPipeline, pipeline},
                {Kind::kAllReduce, Algorithm::kMeshRing, reduce(5, 5 / m)},
                {Kind::kAllReduce, Algorithm::kMeshNhr, reduce(3, 5 / m)},
                {Kind::kAllReduce, Algorithm::kMeshRhd, reduce(3, 11 / m)},
                {Kind::kAllReduce, Algorithm::kPipeline, 2 * pipeline},
                {Kind::kBroadcast, Algorithm::kMeshRing, root(10, 10 / m)},
                {Kind::kReduce, Algorithm::kMeshRhd, root(5, 1 + 10 / m)},
                {Kind::kBroadcast, Algorithm::kMeshNhr, -1},
                {Kind::kBarrier, Algorithm::kMeshNhr, 2 * (1000 + 3 * 2300)},
                {Kind::kAllReduce, Algorithm::kMesh, -1}});
  // Four nodes are a power of two: RHD is NHR, and a broadcast has twice two steps.
  const Network four = network_of(std::string("4x8:ascend910b") + kHcclLinks);
  EXPECT_EQ(four.collective_ns(Kind::kAllReduce, Algorithm::kMeshRhd, range(32), 8 << 20),
            four.collective_ns(Kind::kAllReduce, Algorithm::kMeshNhr, range(32), 8 << 20));
  expect_times(four, range(32), 8 << 20, {{Kind::kBroadcast, Algorithm::kMeshRhd, root(4, 1.5)}});
  // One member a node: no mesh, and nothing to overlap.
  expect_times(network, range(6, 8), 8 << 20,
               {{Kind::kAllGather, Algorithm::kMeshNhr, 3 * 2300 + 5 / m * all},
                {Kind::kAllGather, Algorithm::kPipeline, -1}});
  // Where members are on different rails, a message first crosses a link of its node.
  expect_times(network_of("2x8:ascend910b,link=5GB/s,link_latency=1us,nic=80Gbps,nic_latency=1us"),
               {0, 9}, 8 << 20, {{Kind::kAllGather, Algorithm::kMeshRing, 3300 + kSize / 2 / 5}});
  // More members on one node than on another are a ring.
  EXPECT_EQ(network.collective_ns(Kind::kAllReduce, Algorithm::kMeshRing, range(12), 1), -1);
  EXPECT_GT(network.collective_ns(Kind::kAllReduce, Algorithm::kRing, range(12), 1), 0);
}

// Few steps for small messages; links in nodes and between them at once for large ones. Ring before
// NHR before RHD where they are equal.
TEST(Hccl, ChoosesByTheSizeAndTheNodes) {
  const auto name = [](const std::string& cluster, Kind kind, int64_t bytes) {
    const ClusterSpec spec = spec_of(cluster);
    return std::string(Network(spec).collective(kind, range(spec.world_size()), bytes).name());
  };
  EXPECT_EQ(name("2x1:ascend910b", Kind::kAllReduce, 64), "mesh, ring");
  EXPECT_EQ(name("3x1:ascend910b", Kind::kAllReduce, 64), "mesh, ring");
  EXPECT_EQ(name("4x1:ascend910b", Kind::kAllReduce, 64), "mesh, NHR");
  EXPECT_EQ(name("2x8:ascend910b", Kind::kAllReduce, 64), "pipeline");
  EXPECT_EQ(name("4x8:ascend910b", Kind::kAllReduce, 64), "mesh, NHR");
  EXPECT_EQ(name("6x8:ascend910b", Kind::kAllGather, 64), "mesh, NHR");
  EXPECT_EQ(name("16x8:ascend910b", Kind::kBroadcast, 64), "mesh, RHD");
  EXPECT_EQ(name("6x8:ascend910b", Kind::kBroadcast, 1 << 30), "mesh, ring");
  EXPECT_EQ(name("4x8:ascend910b", Kind::kAllReduce, 1 << 30), "pipeline");
  EXPECT_EQ(name("16x8:ascend910b", Kind::kAllGather, 1 << 30), "pipeline");
}

// ---- HCL of Gaudi.

TEST(Hcl, OverlapsTheMeshWithMessagesToPeers) {
  const Network network =
      network_of("4x8:gaudi2,link=25GB/s,link_latency=1us,nic=80Gbps,nic_latency=1us");
  // Four reduce-scatters in the node and three messages of a 32nd each; the NIC is slower.
  const double phase = 1000 + 2300 + kSize / 32 / 25 + 3 * kSize / 32 / 10;
  expect_times(network, range(32), 8 << 20,
               {{Kind::kAllGather, Algorithm::kMeshPairs, phase},
                {Kind::kReduceScatter, Algorithm::kMeshPairs, phase},
                {Kind::kAllReduce, Algorithm::kMeshPairs, 2 * phase},
                {Kind::kBroadcast, Algorithm::kMeshPairs, 2 * phase},
                {Kind::kAllReduce, Algorithm::kMeshRing, -1}});
  // With a fast NIC, the mesh is.
  expect_times(
      network_of("4x8:gaudi2,link=25GB/s,link_latency=1us,nic=800Gbps,nic_latency=1us"), range(32),
      8 << 20,
      {{Kind::kAllGather, Algorithm::kMeshPairs, 3300 + 4 * kSize / 32 / 25 + kSize / 32 / 100}});
}

// docs.habana.ai, "Collectives Performance": eight devices of 513 GB/s, which are Gaudi 3 (seven
// links of 75 GB/s): an all-reduce of 256 MiB in 915.8 us, an all-gather of 16 MiB from each in
// 230.6 us.
TEST(Hcl, IsNearWhatIsPublished) {
  const Network network = network_of("1x8:gaudi2,link=75GB/s");
  EXPECT_NEAR(network.collective(Kind::kAllReduce, range(8), 256 << 20).ns / 915.8e3, 0.98, 0.005);
  EXPECT_NEAR(network.collective(Kind::kAllGather, range(8), 128 << 20).ns / 230.6e3, 0.97, 0.005);
}

// ---- RCCL.

TEST(Rccl, IsARingInANode) {
  const Network network = network_of("1x8:mi300x");
  // The bus: seven links of 48 GB/s. LL has 0.08 of it.
  const double bus = kSize / 336;
  expect_times(network, range(8), 8 << 20,
               {{Kind::kAllReduce, Algorithm::kRing, 17000 + 14 * 2100 + 14.0 / 8 * bus},
                {Kind::kAllReduce, Algorithm::kRingLl, 12000 + 14 * 800 + 14.0 / 8 * bus / 0.08},
                {Kind::kAllGather, Algorithm::kRing, 17000 + 7 * 2100 + 7.0 / 8 * bus},
                {Kind::kReduceScatter, Algorithm::kRingLl, 12000 + 7 * 800 + 7.0 / 8 * bus / 0.08},
                {Kind::kBroadcast, Algorithm::kRing, 17000 + 2100 + bus},
                {Kind::kReduce, Algorithm::kRingLl, 12000 + 800 + bus / 0.08 / 1.65},
                {Kind::kBarrier, Algorithm::kRingLl, 12000 + 14 * 800},
                {Kind::kAllToAll, Algorithm::kDirect, 12800 + kSize / 8 / 48},
                {Kind::kAllReduce, Algorithm::kTree, -1},
                {Kind::kAllReduce, Algorithm::kTreeLl, -1}});
  EXPECT_EQ(network.collective(Kind::kAllReduce, range(8), 1024).name(), "ring LL");
  EXPECT_EQ(network.collective(Kind::kAllReduce, range(8), 8 << 20).name(), "ring");
  // Four in the node take another row of the table: three links, and a broadcast has four steps.
  expect_times(network, range(4), 8 << 20,
               {{Kind::kAllReduce, Algorithm::kRing, 17000 + 6 * 3600 + 1.5 * kSize / 144},
                {Kind::kAllReduce, Algorithm::kRingLl, 12000 + 6 * 800 + 1.5 * kSize / 144 / 0.04},
                {Kind::kBroadcast, Algorithm::kRing, 17000 + 4 * 2500 + kSize / 144}});
  const Network::Route route = network.route(0, 3);
  EXPECT_EQ(route.latency_ns, 12800);
  EXPECT_NEAR(network.link_bytes_per_second()[route.links[0]], 48e9, 1);
}

TEST(Rccl, HasTreesOverNodes) {
  const Network network = network_of("2x8:mi300x");
  const double bus = kSize / 336;
  // Four of 30 steps leave a node; the CPU needs 2 us for each of the others, 6 with Simple.
  expect_times(
      network, range(16), 8 << 20,
      {{Kind::kAllReduce, Algorithm::kRing, 17000 + 26 * 6000 + 4 * 15100 + 30.0 / 16 * bus},
       {Kind::kAllReduce, Algorithm::kRingLl, 12000 + 26 * 2000 + 4 * 9500 + 30.0 / 16 * bus / .08},
       {Kind::kAllReduce, Algorithm::kTree, 17000 + 2 * (7 * 2300 + 25000) + 2 * bus / 0.59},
       {Kind::kAllReduce, Algorithm::kTreeLl, 12000 + 2 * (7 * 900 + 10500) + 2 * bus / 0.06},
       {Kind::kAllGather, Algorithm::kRing, 17000 + 14 * 6000 + 15100 + 15.0 / 16 * bus},
       {Kind::kBroadcast, Algorithm::kRingLl, 12000 + 9500 + bus / 0.08},
       {Kind::kAllGather, Algorithm::kTree, -1}});
  // Four NICs are not among RCCL's models of nodes, and bound the bus.
  expect_times(network_of("2x8:mi300x,fabric=fat-tree,nics=4"), range(16), 8 << 20,
               {{Kind::kAllReduce, Algorithm::kTree,
                 17000 + 2 * (7 * 2500 + 20800) + 2 * kSize / 200 / 0.91}});
  EXPECT_EQ(network.route(0, 8).latency_ns, 21500);
  // A slower network adds what it has more than two NICs of a microsecond and three switches.
  expect_times(network_of("2x8:mi300x,nic_latency=3us"), range(16), 0,
               {{Kind::kAllReduce, Algorithm::kTreeLl, 12000 + 2 * (7 * 900 + 10500 + 3400)},
                {Kind::kAllReduce, Algorithm::kTree, 17000 + 2 * (7 * 2300 + 25000 + 2 * 3400)}});
}

// Published times of an all-reduce, and ours beside them: README.md has the sources.
TEST(Rccl, IsNearWhatIsPublished) {
  const struct {
    const char* cluster;
    int64_t bytes;
    double us;
    double ratio;
  } rows[] = {
      {"1x8:mi300x", 8 << 20, 91.10, 0.99},          {"2x8:mi300x", 1 << 10, 53.88, 0.85},
      {"2x8:mi300x", 4 << 10, 56.75, 0.81},          {"2x8:mi300x", 16 << 10, 56.65, 0.83},
      {"2x8:mi300x", 32 << 10, 60.86, 0.80},         {"2x8:mi300x", int64_t{2} << 30, 11186, 1.09},
      {"2x8:mi300x", int64_t{16} << 30, 89235, 1.08}};
  for (const auto& row : rows) {
    const ClusterSpec spec = spec_of(row.cluster);
    const double us =
        static_cast<double>(
            Network(spec).collective(Kind::kAllReduce, range(spec.world_size()), row.bytes).ns) /
        1000;
    EXPECT_NEAR(us / row.us, row.ratio, 0.01) << row.cluster << " " << row.bytes;
  }
  // Over the sizes from 1 KiB to 16 GiB the published mean is 142.65 GB/s.
  const Network network = network_of("2x8:mi300x");
  double sum = 0;
  for (int i = 10; i <= 34; ++i) {
    const int64_t bytes = int64_t{1} << i;
    sum += bus_factor(Kind::kAllReduce, 16) * static_cast<double>(bytes) /
           static_cast<double>(network.collective(Kind::kAllReduce, range(16), bytes).ns);
  }
  EXPECT_NEAR(sum / 25 / 142.65, 0.90, 0.005);
}

// ---- TPUs. "How to Scale Your Model", chapter 3: along whole axes V / (W n), for W the bandwidth
// of an axis both ways.

TEST(Tpu, GathersAtTheBandwidthOfAllAxes) {
  const Network network = network_of("tpu-v4:16x16x16,link=45GB/s,link_latency=1us");
  constexpr double kV = 1 << 30;
  EXPECT_NEAR(network.collective(Kind::kAllGather, range(4096), 1 << 30).ns,
              3 * 8 * 1000 + kV / (90 * 3), 0.001 * kV / 270);
  EXPECT_NEAR(network.collective(Kind::kAllGather, range(16), 1 << 30).ns,
              8 * 1000 + 15.0 / 16 * kV / 90, 1);
  // 23 us along one axis of 4, by the book without the term for the chip's own part.
  const Network small = network_of("tpu-v4:4x4x4,link=45GB/s,link_latency=1us");
  EXPECT_NEAR(small.collective(Kind::kAllGather, range(4), 2 * 1024 * 1024).ns,
              2000 + 0.75 * 23.3e3, 50);
}

// The same, page "AllGather time": 34 MB along a line of four took 680 us, 128 KiB 8 us.
TEST(Tpu, IsNearWhatIsPublished) {
  const Network network = network_of("tpu-v5e:8x4");
  EXPECT_NEAR(network.collective(Kind::kAllGather, range(4), 2048 * 8192 * 2).ns / 680e3, 0.74,
              0.01);
  EXPECT_NEAR(network.collective(Kind::kAllGather, range(4), 256 * 256 * 2).ns / 8e3, 0.62, 0.01);
}

// ---- For people.

TEST(ExplainCollective, NamesTheLibraryAndItsSource) {
  const auto explain = [](const std::string& cluster) {
    return *explain_collective("all_reduce 25MB", spec_of(cluster));
  };
  EXPECT_EQ(explain("2x8:ascend910b"), R"(all_reduce 25MB of 16 ranks on 2x8:ascend910b
closed forms of HCCL
  mesh, ring    354.2 us = 6 us + bytes at 71.79 GB/s
  mesh, NHR     354.2 us = 6 us + bytes at 71.79 GB/s
  mesh, RHD     354.2 us = 6 us + bytes at 71.79 GB/s
  pipeline      242.6 us = 6 us + bytes at 105.7 GB/s
  bandwidth     103 GB/s, of the bus 193.2 GB/s
  source        gitcode.com/cann/hccl, docs, coll_algo_intro
A simulation takes the fastest of them (README of simulator/network).
)");
  EXPECT_THAT(explain("2x8:mi300x"), HasSubstr("\nclosed forms of RCCL 2.21.5\n  ring "));
  EXPECT_THAT(explain("2x8:gaudi2"), HasSubstr("\nclosed forms of HCL\n  mesh, pairs "));
  EXPECT_THAT(explain("2x8:mi300x,node=switch"), HasSubstr("\nideal\n"));
  EXPECT_THAT(explain("2x8:mi300x,node=switch"), Not(HasSubstr("RCCL")));
}

// ---- Relations; those of bandwidth, latency and bytes are in network_test.cc.

TEST(CollectiveLibrary, GivesEqualGroupsEqualCosts) {
  for (const char* text : {"4x8:mi300x", "4x8:ascend910b", "4x8:gaudi2"}) {
    const Network network = network_of(text);
    EXPECT_EQ(network.costs_of({0, 8, 16, 24}), network.costs_of({3, 11, 19, 27})) << text;
    EXPECT_EQ(network.costs_of({0, 1}), network.costs_of({30, 31})) << text;
    EXPECT_NE(network.costs_of({0, 1}), network.costs_of({0, 8})) << text;
  }
}

}  // namespace
}  // namespace accelerate::simulator
