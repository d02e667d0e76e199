#include "simulator/network/shared_links.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "simulator/core/random.h"

namespace accelerate::simulator {
namespace {

constexpr int kRanks = 4;

// Links and NICs of one byte a nanosecond, so that bytes are nanoseconds.
ClusterSpec unit_cluster() {
  ClusterSpec spec{.num_nodes = 2, .ranks_per_node = kRanks, .device = DeviceModel{.name = "unit"}};
  spec.node_link.bytes_per_second = 1e9;
  spec.nic.bytes_per_second = 1e9;
  spec.nics_per_node = kRanks;
  return spec;
}

// Collectives over the links of a node, each of which is alone on them for `busy` of its time.
class Sharing : public ::testing::Test {
 protected:
  // Returns the collective's end.
  int64_t add(int group, int64_t ready_ns, int64_t alone_ns, double busy = 1,
              std::vector<int> ranks = {0, 1}) {
    return interval(group, ready_ns, alone_ns, {.node_out = busy * static_cast<double>(alone_ns)},
                    std::move(ranks))
        .end_ns;
  }

  SharedLinks::Interval interval(int group, int64_t ready_ns, int64_t alone_ns,
                                 const LinkBytes& bytes, std::vector<int> ranks = {0, 1}) {
    std::vector<SharedLinks::Member> members;
    for (const int rank : ranks) members.push_back({.rank = rank, .bytes = bytes});
    return links_.add(group, ready_ns, alone_ns, members);
  }

  SharedLinks links_{unit_cluster()};
};

TEST_F(Sharing, ACollectiveAloneTakesItsTime) {
  EXPECT_EQ(add(0, 10, 100), 110);
  EXPECT_EQ(add(1, 110, 100), 210);
  EXPECT_EQ(add(2, 0, 100, 1, {2, 3}), 100) << "at other ranks";
}

TEST_F(Sharing, CollectivesOfAGroupRunOneAfterAnother) {
  EXPECT_EQ(add(0, 0, 100, 0.1), 100);
  EXPECT_EQ(add(0, 20, 100, 0.1), 200);
}

TEST_F(Sharing, TwoThatNeedAllOfALinkHaveHalfEach) {
  EXPECT_EQ(add(0, 0, 100), 100);
  EXPECT_EQ(add(1, 0, 100), 200);
  // The first ends at 200 as well, although it was told 100.
  EXPECT_EQ(interval(0, 100, 10, {.node_out = 10}).start_ns, 200);
}

TEST_F(Sharing, AShortOneBesideALongOneTakesTwiceItsTimeAndDelaysTheLongOnesGroup) {
  EXPECT_EQ(add(0, 0, 100), 100);
  EXPECT_EQ(add(1, 30, 10), 50);
  const SharedLinks::Interval next = interval(0, 60, 100, {.node_out = 100});
  EXPECT_EQ(next.start_ns, 110);
  EXPECT_EQ(next.end_ns, 210);
}

TEST_F(Sharing, ALongOneBesideAShortOneGoesOnAloneAfterIt) {
  EXPECT_EQ(add(0, 0, 10), 10);
  EXPECT_EQ(add(1, 0, 100), 110);
}

TEST_F(Sharing, WhoNeedsLessThanAnEqualPartGetsIt) {
  EXPECT_EQ(add(0, 0, 100, 0.3), 100);
  EXPECT_EQ(add(1, 0, 100, 0.7), 100) << "both fit";
  // It leaves 0.3 to the first; the second and third have 0.35 each, half of what they need.
  EXPECT_EQ(add(2, 0, 50, 0.7), 100);
}

TEST_F(Sharing, OtherLinksAndOtherDirectionsAreNotShared) {
  EXPECT_EQ(interval(0, 0, 100, {.node_out = 100}).end_ns, 100);
  EXPECT_EQ(interval(1, 0, 100, {.node_in = 100}).end_ns, 100);
  EXPECT_EQ(interval(2, 0, 100, {.nic_out = 100}).end_ns, 100);
  EXPECT_EQ(interval(3, 0, 100, {.nic_in = 100}).end_ns, 100);
  EXPECT_EQ(interval(4, 0, 100, {.nic_out = 50, .nic_in = 50}).end_ns, 100) << "half of each";
  EXPECT_EQ(interval(5, 0, 100, {.bridge = 100}).end_ns, 100);
}

TEST_F(Sharing, ACollectiveGoesOnAtThePaceOfItsSlowestMember) {
  EXPECT_EQ(add(0, 0, 40, 1, {0, 1}), 40);
  EXPECT_EQ(add(1, 0, 40, 0.5, {2, 3}), 40);
  EXPECT_EQ(add(2, 0, 100, 1, {1, 2}), 140);
}

TEST_F(Sharing, WhatAMemberDoesNotUseIsLeftToOthers) {
  EXPECT_EQ(add(0, 0, 300, 1, {0, 1}), 300);
  EXPECT_EQ(add(1, 0, 300, 1, {0, 2}), 600);
  EXPECT_EQ(add(2, 0, 300, 1, {0, 3}), 900) << "a third of the link at rank 0";
  // It goes on at a third, so that two thirds are left beside it at rank 3.
  EXPECT_EQ(add(3, 0, 600, 1, {3, 5}), 900);
}

// One after the other of group 0 move on when the first of them is slowed.
TEST_F(Sharing, LaterOnesOfADelayedGroupMoveOn) {
  EXPECT_EQ(add(0, 0, 100), 100);
  EXPECT_EQ(add(0, 0, 100), 200);
  EXPECT_EQ(add(1, 0, 50), 100) << "half of the link all the time";
  // The two of group 0 are on the link until 250.
  EXPECT_EQ(add(2, 210, 100), 210 + 80 + 60);
}

TEST_F(Sharing, AllLaterOnesOfADelayedGroupMoveOn) {
  for (const int64_t end_ns : {100, 200, 300, 400}) EXPECT_EQ(add(0, 0, 100), end_ns);
  EXPECT_EQ(add(1, 0, 50), 100);
  // The four of group 0 are on the link until 450.
  EXPECT_EQ(add(2, 410, 100), 410 + 80 + 60);
}

TEST_F(Sharing, LaterOnesBehindAGapMoveOnByWhatIsLeftOfTheDelay) {
  EXPECT_EQ(add(0, 0, 100), 100);
  EXPECT_EQ(add(0, 130, 100), 230);
  EXPECT_EQ(add(0, 230, 100), 330);
  EXPECT_EQ(add(1, 0, 50), 100) << "which delays the first one by 50, and the others by 20";
  EXPECT_EQ(add(2, 340, 100), 340 + 20 + 90) << "the last one is there until 350";
}

// The links are never idle while somebody is ready, and do not carry more than they can: the last
// end is nearly the sum of all times, in whatever order and groups they come. Only nearly, because
// a collective counts with its mean demand.
TEST_F(Sharing, LittleIsLostOrGained) {
  DeterministicRandom random(7);
  for (int round = 0; round < 50; ++round) {
    SharedLinks links(unit_cluster());
    int64_t sum_ns = 0;
    for (int i = 0; i < 40; ++i) {
      const auto alone_ns = static_cast<int64_t>(1 + random.below(1000));
      const std::vector<SharedLinks::Member> members = {
          {.rank = 0, .bytes = {.node_in = static_cast<double>(alone_ns)}}};
      const SharedLinks::Interval time =
          links.add(static_cast<int>(random.below(6)), 0, alone_ns, members);
      EXPECT_GE(time.end_ns - time.start_ns, alone_ns) << "others make it no faster";
      sum_ns += alone_ns;
    }
    int64_t last_ns = 0;
    for (int group = 0; group < 6; ++group) {
      const std::vector<SharedLinks::Member> members = {{.rank = 0}};
      last_ns = std::max(last_ns, links.add(group, 0, 0, members).start_ns);
    }
    EXPECT_NEAR(static_cast<double>(last_ns) / static_cast<double>(sum_ns), 1, 0.06);
  }
}

// Groups that cross, as those of two axes of a mesh do: all of an axis get the same times, in
// whatever order they are added after those that their members called before.
TEST_F(Sharing, GroupsOfAnAxisHaveEqualTimes) {
  const std::vector<std::vector<int>> rows = {{0, 1}, {2, 3}}, columns = {{0, 2}, {1, 3}};
  EXPECT_EQ(add(0, 0, 100, 1, rows[0]), 100);
  EXPECT_EQ(add(1, 0, 100, 1, rows[1]), 100);
  EXPECT_EQ(add(2, 0, 100, 1, columns[0]), 200);
  EXPECT_EQ(add(3, 0, 100, 1, columns[1]), 200);
  const int64_t end_ns = add(1, 0, 60, 1, rows[1]);
  EXPECT_EQ(add(0, 0, 60, 1, rows[0]), end_ns);
  EXPECT_EQ(end_ns, 260);
}

TEST_F(Sharing, WhatIsOverIsForgottenAndTimesWithoutEndAreNotShared) {
  EXPECT_EQ(add(0, 0, 100), 100);
  const std::vector<SharedLinks::Member> late = {
      {.rank = 0, .bytes = {.node_out = 50}, .not_before_ns = 100}};
  EXPECT_EQ(links_.add(1, 100, 50, late).end_ns, 150);
  constexpr int64_t kEver = int64_t{1} << 60;
  EXPECT_EQ(add(2, 0, kEver), kEver);
  EXPECT_EQ(add(3, 0, kEver), kEver);
}

}  // namespace
}  // namespace accelerate::simulator
