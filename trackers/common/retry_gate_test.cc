#include "trackers/common/retry_gate.h"

#include <gtest/gtest.h>

namespace accelerate::trackers {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1000);

TEST(RetryGate, IsOpenUntilSomethingFails) {
  RetryGate gate(1);
  EXPECT_TRUE(gate.is_open(kNow));
  gate.failed(kNow);
  EXPECT_FALSE(gate.is_open(kNow));
  EXPECT_TRUE(gate.is_open(kNow + absl::Seconds(1)));
}

TEST(RetryGate, ClosesForTwiceAsLongEachTimeUpToALimit) {
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    RetryGate gate(seed, {.first = absl::Seconds(1), .longest = absl::Seconds(10)});
    for (const int64_t most : {1, 2, 4, 8, 10, 10, 10}) {
      gate.failed(kNow);
      EXPECT_LE(gate.next() - kNow, absl::Seconds(most)) << seed;
      EXPECT_GE(gate.next() - kNow, absl::Seconds(most) / 2) << seed;
    }
    for (int i = 0; i < 100; ++i) gate.failed(kNow);
    EXPECT_LE(gate.next() - kNow, absl::Seconds(10));
  }
}

TEST(RetryGate, DiffersFromOneSeedToAnother) {
  RetryGate one(1);
  RetryGate other(2);
  one.failed(kNow);
  other.failed(kNow);
  EXPECT_NE(one.next(), other.next());
}

TEST(RetryGate, BeginsAnewAfterASuccess) {
  RetryGate gate(1);
  for (int i = 0; i < 5; ++i) gate.failed(kNow);
  gate.succeeded();
  EXPECT_TRUE(gate.is_open(kNow));
  gate.failed(kNow);
  EXPECT_LE(gate.next() - kNow, absl::Seconds(1));
}

TEST(RetryGate, WaitsAsLongAsItIsAskedTo) {
  RetryGate gate(1);
  gate.failed(kNow, absl::Seconds(120));
  EXPECT_EQ(gate.next(), kNow + absl::Seconds(120));
  // Hurry does not overrule the service.
  gate.hurry();
  EXPECT_EQ(gate.next(), kNow + absl::Seconds(120));
  gate.succeeded();
  EXPECT_TRUE(gate.is_open(kNow));
}

TEST(RetryGate, IsNotClosedForDays) {
  RetryGate gate(1);
  gate.failed(kNow, absl::Hours(100));
  EXPECT_EQ(gate.next(), kNow + absl::Hours(1));
}

TEST(RetryGate, HurryOpensIt) {
  RetryGate gate(1);
  for (int i = 0; i < 9; ++i) gate.failed(kNow);
  gate.hurry();
  EXPECT_TRUE(gate.is_open(kNow));
}

}  // namespace
}  // namespace accelerate::trackers
