#include "simulator/network/nccl/search.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace accelerate::simulator::nccl {
namespace {

Graphs found(const std::string& text, const std::vector<Node>& kinds) {
  const auto spec = ClusterSpec::parse(text);
  EXPECT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(applies_to(*spec));
  int ranks = 0;
  for (int node = 0; node < spec->num_nodes; ++node) ranks += kinds[node % kinds.size()].gpus;
  return search(machine_of(*spec), {.ranks = ranks, .nodes = spec->num_nodes, .kinds = kinds});
}
Graphs found(const std::string& text) {
  const int gpus = ClusterSpec::parse(text)->ranks_per_node;
  return found(text, {{gpus, gpus}});
}

void expect(const Graph& graph, int channels, double in_node, double between_nodes) {
  EXPECT_EQ(graph.channels, channels);
  EXPECT_DOUBLE_EQ(graph.in_node, in_node);
  EXPECT_DOUBLE_EQ(graph.between_nodes, between_nodes);
}

// What logs of NCCL_DEBUG=INFO show: "Pattern 4 ... nChannels 12, bw 20.000000/20.000000" and "24
// coll channels" on 8 A100; on 8 H100 github.com/NVIDIA/nccl/issues/1197 (2.19.4).
TEST(Search, FindsWhatLogsShowOfOneNode) {
  const Graphs a100 = found("1x8:a100-80");
  expect(a100.ring, 12, 20, 20);
  expect(a100.tree, 12, 20, 20);
  EXPECT_EQ(a100.nvls.channels, 0);
  EXPECT_EQ(a100.channels, 24);
  expect(found("1x2:a100-80").tree, 12, 40, 40);
  for (const char* version : {"2.19.4", "2.28.9"}) {
    for (const char* device : {"h100", "h200"}) {
      const Graphs hopper = found(absl::StrCat("1x8:", device, ",nccl=", version));
      expect(hopper.ring, 12, 30, 30);
      expect(hopper.tree, 12, 30, 30);
      expect(hopper.nvls, 8, 40, 60);
      EXPECT_EQ(hopper.channels, 24);
      EXPECT_EQ(hopper.nvls_channels, 16);
      EXPECT_TRUE(hopper.rings_are_alike);
    }
  }
}

// 8 NICs of 400 Gb/s on two nodes: "Pattern 4, crossNic 2, nChannels 8, bw 48.000000/48.000000,
// type NVL/PIX"; two GPUs a node with a NIC each: "4 x 24" (issue 1189).
TEST(Search, FindsWhatLogsShowOfSeveralNodes) {
  const Graphs h100 = found("2x8:h100");
  expect(h100.ring, 8, 48, 48);
  EXPECT_EQ(h100.channels, 16);
  EXPECT_FALSE(h100.rings_are_alike);
  expect(found("2x2:h100").ring, 4, 24, 24);
}

// By hand, from the rules.
TEST(Search, CountsChannels) {
  const Graphs h100 = found("4x8:h100");
  expect(h100.tree, 8, 48, 48);
  expect(h100.nvls, 8, 40, 48);
  const Graphs a100 = found("4x8:a100-80");
  expect(a100.ring, 8, 24, 24);
  expect(a100.tree, 8, 30, 24);
  EXPECT_EQ(a100.channels, 16);
  const Graphs b200 = found("1x8:b200");
  expect(b200.ring, 16, 45, 45);
  expect(b200.nvls, 8, 80, 90);
  EXPECT_EQ(b200.channels, 32);
  expect(found("1x6:b200").nvls, 6, 90, 90);
  expect(found("1x4:h100").nvls, 4, 60, 60);

  const Graphs single = found("4x8:h100", {{1, 1}});
  expect(single.ring, 2, 24, 24);
  expect(single.tree, 2, 24, 24);
  EXPECT_EQ(single.nvls.channels, 0);
  EXPECT_TRUE(single.trees_are_chains);
  EXPECT_TRUE(single.rings_are_alike);
  // Four GPUs a node: twice the channels at half the speed, and trees faster in the node.
  const Graphs four = found("2x4:h100");
  expect(four.ring, 8, 24, 24);
  expect(four.tree, 8, 48, 24);
}

TEST(Search, LivesWithFewAndSlowLinks) {
  // One NIC for eight GPUs.
  const Graphs one = found("2x8:h100,fabric=ethernet", {{8, 1}});
  expect(one.ring, 2, 24, 24);
  EXPECT_TRUE(one.rings_are_alike);
  // Slower than every speed that is tried.
  const Graphs slow = found("2x8:h100,nic=1MB/s");
  expect(slow.ring, 1, 0.001, 0.001);
  expect(slow.tree, 1, 0.001, 0.001);
  EXPECT_EQ(slow.nvls.channels, 0);
  // The slot of the NIC is the limit, not the NIC.
  EXPECT_EQ(found("2x8:h100,nic=10Tbps").ring.between_nodes, 48);
}

TEST(Search, GivesEveryNodeWhatThePoorestHas) {
  const Graphs mixed = found("2x8:h100", {{8, 8}, {4, 4}});
  const Graphs poor = found("2x4:h100");
  EXPECT_LE(mixed.ring.channels, poor.ring.channels);
  EXPECT_LE(mixed.ring.between_nodes, poor.ring.between_nodes);
  EXPECT_EQ(mixed.nvls.channels, 4);
}

TEST(Search, AppliesToNvidiaBehindSwitches) {
  for (const char* text : {"1x8:a100-40", "2x8:a100-80", "2x8:h100", "1x8:h200", "1x8:b200"}) {
    EXPECT_TRUE(applies_to(*ClusterSpec::parse(text))) << text;
  }
  for (const char* text : {"2x8", "2x8:v100", "2x8:mi300x", "2x8:h100,node=pcie",
                           "2x8:h100,node=mesh", "2x8:ascend910b", "tpu-v4:2x2", "2x8:mlu"}) {
    EXPECT_FALSE(applies_to(*ClusterSpec::parse(text))) << text;
  }
}

}  // namespace
}  // namespace accelerate::simulator::nccl
