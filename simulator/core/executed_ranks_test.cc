#include "simulator/core/executed_ranks.h"

#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(ExecutedRanks, AreAllWithoutFolding) {
  const ExecutedRanks ranks(3);
  EXPECT_FALSE(ranks.folds());
  EXPECT_THAT(ranks.ranks(), ElementsAre(0, 1, 2));
  EXPECT_EQ(ranks.representative_of(2), 2);
  EXPECT_EQ(ranks.weight_of(2), 1);
  EXPECT_EQ(ranks.task_of(1), 1);
}

TEST(ExecutedRanks, AreTheLowestOfEachClassAndThoseThatAFaultTouches) {
  const ExecutedRanks ranks({0, 1, 0, 1, 0, 1}, /*touched=*/{3, 3}, /*spot_checks=*/0, /*seed=*/1);
  EXPECT_TRUE(ranks.folds());
  EXPECT_THAT(ranks.ranks(), ElementsAre(0, 1, 3));
  EXPECT_EQ(ranks.rank_of(2), 3);
  EXPECT_EQ(ranks.task_of(3), 2);
  EXPECT_FALSE(ranks.is_executed(5));
  EXPECT_EQ(ranks.representative_of(4), 0);
  EXPECT_EQ(ranks.representative_of(5), 1);
  EXPECT_EQ(ranks.representative_of(3), 3);
  EXPECT_EQ(ranks.weight_of(0), 3);
  EXPECT_EQ(ranks.weight_of(1), 2);
  EXPECT_EQ(ranks.weight_of(3), 1);
  EXPECT_THAT(ranks.spot_checks(), IsEmpty());
  EXPECT_EQ(ranks.to_string(), "3 of 6 ranks executed");
}

// What a fault does to one rank does not happen to those that are folded.
TEST(ExecutedRanks, ThatAFaultTouchesRepresentNobody) {
  const ExecutedRanks ranks({0, 0, 0, 0}, /*touched=*/{0}, /*spot_checks=*/1, /*seed=*/1);
  EXPECT_FALSE(ranks.may_represent(0));
  EXPECT_TRUE(ranks.may_represent(1));
  EXPECT_EQ(ranks.weight_of(0), 1);
  EXPECT_EQ(ranks.weight_of(1), 2);
  EXPECT_EQ(ranks.num_tasks(), 3);
  // No rank is left to fold.
  EXPECT_FALSE(ExecutedRanks({0, 0}, {0, 1}, 1, 1).folds());
}

TEST(ExecutedRanks, CountForAllRanksTogether) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<int> classes(100);
    for (int rank = 0; rank < 100; ++rank) classes[rank] = rank % 7;
    const ExecutedRanks ranks(classes, {50}, 3, seed);
    EXPECT_EQ(ranks.num_tasks(), 7 + 1 + 3);
    EXPECT_THAT(ranks.spot_checks(), SizeIs(3));
    int sum = 0;
    for (int rank : ranks.ranks()) sum += ranks.weight_of(rank);
    EXPECT_EQ(sum, 100);
  }
}

TEST(ExecutedRanks, DrawTheSpotChecksFromTheSeed) {
  const std::vector<int> replicas(1000);
  const auto drawn = [&](uint64_t seed) {
    return ExecutedRanks(replicas, {}, 2, seed).spot_checks();
  };
  EXPECT_EQ(drawn(1), drawn(1));
  EXPECT_NE(drawn(1), drawn(2));
  // There are no more folded ranks than that.
  EXPECT_THAT(ExecutedRanks({0, 0, 0}, {}, 7, 1).ranks(), ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace accelerate::simulator
