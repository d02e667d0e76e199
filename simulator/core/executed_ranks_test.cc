#include "simulator/core/executed_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::simulator {
namespace {

using ::testing::ElementsAre;

TEST(ExecutedRanks, AreAllWithoutFolding) {
  const ExecutedRanks ranks(3);
  EXPECT_FALSE(ranks.folds());
  EXPECT_THAT(ranks.ranks(), ElementsAre(0, 1, 2));
  EXPECT_EQ(ranks.representative_of(2), 2);
  EXPECT_EQ(ranks.weight_of(2), 1);
  EXPECT_EQ(ranks.task_of(1), 1);
}

TEST(ExecutedRanks, CountForTheirClasses) {
  const ExecutedRanks ranks({0, 1, 0, 2, 0, 1}, {true, true, false, true, false, false});
  EXPECT_TRUE(ranks.folds());
  EXPECT_FALSE(ranks.has_spot_checks());
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
  EXPECT_EQ(ranks.to_string(), "3 of 6 ranks executed");
}

TEST(ExecutedRanks, OfOneClassAreSpotChecks) {
  const ExecutedRanks ranks({0, 0, 0, 0}, {false, true, true, false});
  EXPECT_TRUE(ranks.has_spot_checks());
  EXPECT_EQ(ranks.representative_of(0), 1);
  EXPECT_EQ(ranks.weight_of(1), 3);
  EXPECT_EQ(ranks.weight_of(2), 1);
  EXPECT_FALSE(ExecutedRanks({0, 1}, {true, true}).folds());
}

TEST(ExecutedRanks, HaveOneOfEachClass) {
  EXPECT_DEATH(ExecutedRanks({0, 1}, {true, false}), "a class without an executed rank");
}

}  // namespace
}  // namespace accelerate::simulator
