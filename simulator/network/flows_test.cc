#include "simulator/network/flows.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simulator/core/random.h"

namespace accelerate::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// Links of one byte a nanosecond: times are sizes. The route from a device to another of its node
// is its link up and the other's link down.
Network unit_network(int ranks, int64_t latency_ns = 0) {
  ClusterSpec spec{.ranks_per_node = ranks, .device = DeviceModel{.name = "unit"}};
  spec.node_link = {.bytes_per_second = 1e9, .latency_ns = latency_ns};
  return Network(spec);
}

// A ring of chips with links of one byte a nanosecond between neighbours.
Network unit_ring(int ranks) {
  ClusterSpec spec{.ranks_per_node = ranks, .device = DeviceModel{.name = "unit"}};
  spec.node_fabric = NodeFabric::kTorus;
  spec.node_link = {.bytes_per_second = 1e9};
  spec.torus = {ranks};
  return Network(spec);
}

std::vector<std::pair<Flows::Id, int64_t>> finish_all(Flows& flows) {
  std::vector<std::pair<Flows::Id, int64_t>> ends;
  while (const auto next = flows.next()) {
    const Flows::Completion end = flows.finish_next();
    EXPECT_EQ(end.id, next->id);
    EXPECT_EQ(end.at_ns, next->at_ns);
    EXPECT_EQ(flows.now_ns(), end.at_ns);
    ends.emplace_back(end.id, end.at_ns);
  }
  return ends;
}

TEST(Flows, GiveALoneMessageTheWholeLink) {
  const Network network(*ClusterSpec::parse("2x4:h100,efficiency=ideal"));
  Flows flows(network);
  EXPECT_FALSE(flows.next().has_value());
  const Flows::Id id = flows.start(0, 1, 450'000'000, 1000);
  const Network::Route route = network.route(0, 1);
  // 450 MB at 450 GB/s.
  EXPECT_THAT(finish_all(flows), ElementsAre(Pair(id, 1000 + route.latency_ns + 1'000'000)));
}

TEST(Flows, RoundUpToTheNanosecond) {
  const Network network(
      *ClusterSpec::parse("1x2:h100,link=3GB/s,link_latency=5ns,efficiency=ideal"));
  Flows flows(network);
  flows.start(0, 1, 10, 0);  // 3.33 ns
  flows.start(1, 0, 9, 0);   // 3 ns
  EXPECT_THAT(finish_all(flows), ElementsAre(Pair(1, 13), Pair(0, 14)));
}

TEST(Flows, TakeTheLatencyOnlyForNoBytes) {
  const Network network = unit_network(2, 100);
  Flows flows(network);
  flows.start(0, 1, 0, 50);
  flows.start(0, 0, 12345, 60);  // To itself: nothing in the way.
  EXPECT_THAT(finish_all(flows), ElementsAre(Pair(1, 60), Pair(0, 250)));
}

TEST(Flows, TakeTwiceAsLongTwoToALink) {
  const Network network = unit_network(4);
  Flows flows(network);
  flows.start(0, 1, 1000, 0);
  flows.start(0, 2, 1000, 0);
  EXPECT_THAT(finish_all(flows), ElementsAre(Pair(0, 2000), Pair(1, 2000)));
}

TEST(Flows, DoNotMeetOnDifferentPaths) {
  const Network network = unit_network(4);
  Flows flows(network);
  flows.start(0, 1, 1000, 0);
  flows.start(1, 0, 1000, 0);  // Links have two directions.
  flows.start(2, 3, 1000, 0);
  EXPECT_THAT(finish_all(flows), ElementsAre(Pair(0, 1000), Pair(1, 1000), Pair(2, 1000)));
}

// The parking lot: one message over two links, and one over each.
//
//   chip 0 ----- chip 1 ----- chip 2
//     a ----------------------> a
//     b ---------> b
//                  c ---------> c
TEST(Flows, ShareAParkingLotFairly) {
  const Network network = unit_ring(8);
  Flows flows(network);
  flows.start(0, 2, 1000, 0);
  flows.start(0, 1, 1000, 0);
  flows.start(1, 2, 2000, 0);
  // Halves until a and b end at 2000; then c has its last 1000 alone.
  EXPECT_THAT(finish_all(flows), ElementsAre(Pair(0, 2000), Pair(1, 2000), Pair(2, 3000)));
}

// Max-min: a flow with another bottleneck leaves its part to the others.
TEST(Flows, GiveToOthersWhatOneCannotUse) {
  const Network network = unit_network(6);
  Flows flows(network);
  // Three into rank 5, a third each; rank 0's other message has the two thirds that are left.
  flows.start(0, 5, 1000, 0);
  flows.start(1, 5, 1000, 0);
  flows.start(2, 5, 1000, 0);
  flows.start(0, 4, 2000, 0);
  EXPECT_THAT(finish_all(flows),
              ElementsAre(Pair(0, 3000), Pair(1, 3000), Pair(2, 3000), Pair(3, 3000)));
}

TEST(Flows, SlowDownWhenAnotherStartsMidway) {
  const Network network = unit_network(4);
  Flows flows(network);
  flows.start(0, 1, 1000, 0);
  flows.start(0, 2, 1000, 400);
  // 400 alone, then halves: the first needs 1200 more, the second then has 400 left.
  EXPECT_THAT(finish_all(flows), ElementsAre(Pair(0, 1600), Pair(1, 2000)));
}

TEST(Flows, PredictAnewWhenAnotherStarts) {
  const Network network = unit_network(4);
  Flows flows(network);
  flows.start(0, 1, 1000, 0);
  EXPECT_EQ(flows.next()->at_ns, 1000);
  flows.start(0, 2, 500, 0);
  EXPECT_EQ(flows.next()->id, 1);
  EXPECT_EQ(flows.next()->at_ns, 1000);
  flows.start(3, 1, 100, 5000);  // Too late to matter.
  EXPECT_EQ(flows.finish_next().id, 1);
  EXPECT_EQ(flows.next()->at_ns, 1500);
  flows.start(2, 3, 10, 0);  // In the past: now.
  EXPECT_THAT(finish_all(flows), ElementsAre(Pair(3, 1010), Pair(0, 1500), Pair(2, 5100)));
}

TEST(Flows, EndInTheOrderOfTheirIdsAtEqualTimes) {
  const Network network = unit_network(16);
  Flows flows(network);
  for (int rank = 15; rank > 0; --rank) flows.start(rank, 0, 100, 0);
  const auto ends = finish_all(flows);
  ASSERT_EQ(ends.size(), 15);
  for (int i = 0; i < 15; ++i) EXPECT_EQ(ends[i], std::pair(Flows::Id{i}, int64_t{1500}));
}

TEST(Flows, CountExactlyLateInARun) {
  constexpr int64_t kLate = int64_t{1} << 55;  // More than a year.
  const Network network = unit_network(4);
  Flows flows(network);
  flows.start(0, 1, 1001, kLate);
  flows.start(0, 2, 1001, kLate + 1);
  EXPECT_THAT(finish_all(flows), ElementsAre(Pair(0, kLate + 2001), Pair(1, kLate + 2002)));
}

// A link that always has work carries all bytes in the time that they need, however they share it.
TEST(Flows, LoseNoBytesAndWasteNoTime) {
  DeterministicRandom random(7);
  const Network network = unit_network(64);
  Flows flows(network);
  int64_t total = 0;
  for (int i = 0; i < 1000; ++i) {
    const int64_t bytes = static_cast<int64_t>(random.below(1'000'000)) + 1'000;
    const int64_t at = static_cast<int64_t>(random.below(1'000));
    flows.start(1 + static_cast<int>(random.below(63)), 0, bytes, i == 0 ? 0 : at);
    total += bytes;
  }
  const auto ends = finish_all(flows);
  ASSERT_EQ(ends.size(), 1000);
  EXPECT_NEAR(ends.back().second, total, 2);
}

// With random messages on a torus no link may exceed its bandwidth: the bytes that have ended by a
// time fit through the links they crossed until then.
TEST(Flows, NeverCarryMoreThanALinkCan) {
  DeterministicRandom random(11);
  const Network network(*ClusterSpec::parse("tpu-v4:4x4x4,link=1GB/s,link_latency=10ns"));
  Flows flows(network);
  std::map<Flows::Id, std::pair<std::vector<int>, int64_t>> sent;
  for (int i = 0; i < 500; ++i) {
    const int source = static_cast<int>(random.below(64));
    const int target = static_cast<int>(random.below(64));
    const int64_t bytes = static_cast<int64_t>(random.below(100'000));
    const auto id = flows.start(source, target, bytes, static_cast<int64_t>(random.below(50'000)));
    sent[id] = {network.route(source, target).links, bytes};
  }
  std::map<int, int64_t> carried;
  for (const auto& [id, at_ns] : finish_all(flows)) {
    for (int link : sent[id].first) {
      carried[link] += sent[id].second;
      EXPECT_LE(carried[link], at_ns + 1);
    }
  }
}

TEST(Flows, RepeatToTheNanosecond) {
  const auto run = [] {
    DeterministicRandom random(3);
    const Network network(*ClusterSpec::parse("4x8:mi300x"));
    Flows flows(network);
    for (int i = 0; i < 300; ++i) {
      flows.start(static_cast<int>(random.below(32)), static_cast<int>(random.below(32)),
                  static_cast<int64_t>(random.below(1 << 20)), i * 100);
    }
    return finish_all(flows);
  };
  EXPECT_EQ(run(), run());
}

TEST(Flows, FallAwayOneByOneWithoutCostingTheOthers) {
  // 4096 messages in separate pairs, and as many ends: each examines its own pair only.
  const Network network(*ClusterSpec::parse("512x8:h100,efficiency=ideal"));
  Flows flows(network);
  for (int rank = 0; rank < 4096; ++rank) flows.start(rank, rank ^ 1, 1'000 + 37 * rank, 0);
  const auto ends = finish_all(flows);
  ASSERT_EQ(ends.size(), 4096);
  EXPECT_EQ(ends.front().first, 0);
  EXPECT_EQ(ends.back().first, 4095);
}

}  // namespace
}  // namespace accelerate::simulator
