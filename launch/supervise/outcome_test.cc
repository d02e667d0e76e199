#include "launch/supervise/rank_group.h"

#include <gtest/gtest.h>

namespace accelerate::launcher::supervise {
namespace {

TEST(RankExit, FollowsTheShellsConvention) {
  EXPECT_FALSE((RankExit{.rank = 1, .pid = 9}.failed()));
  EXPECT_EQ((RankExit{.code = 3}.exit_code()), 3);
  EXPECT_EQ((RankExit{.signal = 9}.exit_code()), 137);
}

TEST(RankExit, IsDescribedWithItsPlaceAndCause) {
  const std::string host = host_name();
  EXPECT_EQ(describe({.rank = 5, .local_rank = 1, .pid = 1234, .code = 3}),
            "rank 5 (pid 1234, local rank 1 on " + host + ") exited with code 3");
  EXPECT_EQ(describe({.rank = 0, .pid = 7, .signal = 9}),
            "rank 0 (pid 7, local rank 0 on " + host + ") was killed by signal 9 (Killed)");
}

}  // namespace
}  // namespace accelerate::launcher::supervise
