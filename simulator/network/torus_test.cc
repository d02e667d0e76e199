#include "simulator/network/torus.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::simulator::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int> range(int count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

TEST(Torus, GoesTheShorterWayRound) {
  const Torus ring({8});
  EXPECT_THAT(ring.route(1, 3), ElementsAre(2, 4));
  EXPECT_THAT(ring.route(3, 1), ElementsAre(7, 5));
  EXPECT_THAT(ring.route(7, 0), ElementsAre(14));
  EXPECT_THAT(ring.route(0, 7), ElementsAre(1));
  EXPECT_THAT(ring.route(0, 4), ElementsAre(0, 2, 4, 6));  // A tie goes up.
  EXPECT_THAT(ring.route(5, 5), IsEmpty());
}

TEST(Torus, GoesAlongOneAxisAfterTheOther) {
  const Torus torus({2, 3, 4});
  // Chip (0, 0, 0) to (1, 2, 1): the link of axis 0, down axis 1, up axis 2.
  EXPECT_THAT(torus.route(0, 12 + 8 + 1), ElementsAre(0, (12 * 3 + 1) * 2 + 1, (20 * 3 + 2) * 2));
  for (int source = 0; source < 24; ++source) {
    for (int target = 0; target < 24; ++target) {
      int distance = 0;
      for (int axis = 0; axis < 3; ++axis) {
        distance +=
            torus.distance(axis, torus.coordinate(source, axis), torus.coordinate(target, axis));
      }
      EXPECT_EQ(torus.route(source, target).size(), distance);
    }
  }
}

TEST(Torus, KnowsTheRingsOfAnAxis) {
  const TorusAxis whole = analyse_axis(8, range(8));
  EXPECT_EQ(whole.rings, 2);
  EXPECT_EQ(whole.links_of_steps, 7);
  const TorusAxis part = analyse_axis(8, {2, 3, 4});
  EXPECT_EQ(part.rings, 1);
  EXPECT_EQ(part.links_of_steps, 3);
  const TorusAxis every_other = analyse_axis(8, {0, 2, 4, 6});
  EXPECT_EQ(every_other.rings, 2);
  EXPECT_EQ(every_other.links_of_steps, 6);
  const TorusAxis pair = analyse_axis(2, {0, 1});
  EXPECT_EQ(pair.rings, 1);
  EXPECT_EQ(pair.links_of_steps, 1);
  EXPECT_EQ(analyse_axis(4, {0, 2}).rings, 2);
  EXPECT_EQ(analyse_axis(5, {3}).members, 1);
}

// Against all pairs along their routes, for every set of members of small rings.
TEST(Torus, CountsTheMessagesOverTheBusiestLink) {
  for (int length : {2, 3, 4, 5, 6, 7, 8, 9}) {
    const Torus ring({length});
    for (int set = 1; set < 1 << length; ++set) {
      std::vector<int> members;
      for (int at = 0; at < length; ++at) {
        if ((set >> at & 1) != 0) members.push_back(at);
      }
      std::map<int, int> uses;
      size_t farthest = 0;
      int busiest = 0;
      for (int source : members) {
        for (int target : members) {
          const std::vector<int> route = ring.route(source, target);
          farthest = std::max(farthest, route.size());
          for (int link : route) busiest = std::max(busiest, ++uses[link]);
        }
      }
      const TorusAxis axis = analyse_axis(length, members);
      EXPECT_EQ(axis.all_to_all_load, busiest) << length << " " << set;
      EXPECT_EQ(axis.farthest, farthest) << length << " " << set;
    }
  }
}

TEST(Torus, RecognisesABox) {
  const Torus torus({4, 4});
  EXPECT_THAT(analyse_box(torus, range(16)), testing::SizeIs(2));
  EXPECT_THAT(analyse_box(torus, {5, 6, 9, 10}), testing::SizeIs(2));
  EXPECT_THAT(analyse_box(torus, {0, 2, 8, 10}), testing::SizeIs(2));
  EXPECT_THAT(analyse_box(torus, {5, 6, 9}), IsEmpty());
  EXPECT_THAT(analyse_box(torus, {0, 5}), IsEmpty());
}

TEST(Torus, FindsTheBottleneckOfARing) {
  EXPECT_EQ(analyse_ring(Torus({8}), range(8)).bandwidth, 2);
  EXPECT_EQ(analyse_ring(Torus({8}), range(8)).links_of_steps, 7);
  EXPECT_EQ(analyse_ring(Torus({2}), range(2)).bandwidth, 1);
  EXPECT_EQ(analyse_ring(Torus({8}), {0, 1, 2}).bandwidth, 1);
  EXPECT_EQ(analyse_ring(Torus({8}), {0, 1, 2}).links_of_steps, 3);
}

}  // namespace
}  // namespace accelerate::simulator::internal
