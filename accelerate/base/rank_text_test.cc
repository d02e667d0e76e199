#include "accelerate/base/rank_text.h"

#include <gtest/gtest.h>

namespace accelerate {
namespace {

TEST(RankRanges, JoinsNeighbours) {
  EXPECT_EQ(rank_ranges({}), "");
  EXPECT_EQ(rank_ranges({4}), "4");
  EXPECT_EQ(rank_ranges({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
}

TEST(RankRanges, KeepsTheOrder) { EXPECT_EQ(rank_ranges({3, 2, 0, 1}), "3,2,0-1"); }

}  // namespace
}  // namespace accelerate
