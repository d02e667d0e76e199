#include "accelerate/base/shard_rows.h"

#include <cstdint>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> counts(int64_t rows, int64_t ranks) {
  std::vector<int64_t> counts;
  for (int64_t rank = 0; rank < ranks; ++rank)
    counts.push_back(shard_rows(rows, ranks, rank).count);
  return counts;
}

TEST(ShardRows, AreAsManyOnEachRankButTheLast) {
  EXPECT_THAT(counts(8, 4), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(counts(10, 4), ElementsAre(3, 3, 3, 1));
  EXPECT_THAT(counts(9, 4), ElementsAre(3, 3, 3, 0));
  EXPECT_THAT(counts(5, 4), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(counts(2, 4), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(counts(0, 3), ElementsAre(0, 0, 0));
  EXPECT_THAT(counts(7, 1), ElementsAre(7));
}

// A rank that has none begins where the rows end.
TEST(ShardRows, FollowOneAnotherWithoutGaps) {
  for (int64_t rows = 0; rows < 20; ++rows) {
    for (int64_t ranks = 1; ranks < 9; ++ranks) {
      int64_t next = 0;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const ShardRows own = shard_rows(rows, ranks, rank);
        EXPECT_EQ(own.first, next) << rows << " rows, rank " << rank << " of " << ranks;
        next += own.count;
      }
      EXPECT_EQ(next, rows);
    }
  }
}

}  // namespace
}  // namespace accelerate
