// What a rank is told after its death.
#include "simulator/faults/deaths.h"

#include <optional>

#include <gtest/gtest.h>

#include "absl/status/status.h"

namespace accelerate::simulator {
namespace {

// How the rank died, if it did.
std::optional<RankKilled> death_of(const Deaths& deaths, int rank) {
  try {
    deaths.check_alive(rank);
  } catch (const RankKilled& death) {
    return death;
  }
  return std::nullopt;
}

TEST(Deaths, TheFirstOfARankStays) {
  Deaths deaths(2);
  EXPECT_FALSE(death_of(deaths, 1).has_value());
  deaths.kill(1, "rank 1 was killed", /*is_cause=*/true);
  deaths.kill(1, "rank 1 was lost with its node", /*is_cause=*/false);
  ASSERT_TRUE(death_of(deaths, 1).has_value());
  EXPECT_STREQ(death_of(deaths, 1)->what(), "rank 1 was killed");
  EXPECT_TRUE(death_of(deaths, 1)->is_cause());
  EXPECT_FALSE(death_of(deaths, 0).has_value());
}

TEST(Deaths, FilesRefuseUntilTheProgramIsInALoop) {
  Deaths deaths(1);
  deaths.kill(0, "rank 0 was killed", /*is_cause=*/true);
  constexpr int kRefusals = 10'000;
  for (int i = 0; i < kRefusals; ++i) {
    const absl::Status status = deaths.refuse(0);
    ASSERT_TRUE(absl::IsAborted(status)) << status;
    ASSERT_EQ(status.message(), "rank 0 was killed");
  }
  EXPECT_THROW(deaths.refuse(0).IgnoreError(), RankKilled);
}

}  // namespace
}  // namespace accelerate::simulator
