#include "accelerate/base/tp_plan.h"

#include <gtest/gtest.h>

namespace accelerate {
namespace {

TEST(PatternMatches, LetsAStarStandForTextWithoutDots) {
  EXPECT_TRUE(pattern_matches("a.b", "a.b"));
  EXPECT_TRUE(pattern_matches("layers.*.up", "layers.12.up"));
  EXPECT_TRUE(pattern_matches("*.up", "x.up"));
  EXPECT_TRUE(pattern_matches("l*s.*", "layers.0"));
  EXPECT_TRUE(pattern_matches("up*", "up"));
  EXPECT_FALSE(pattern_matches("layers.*", "layers.0.up"));
  EXPECT_FALSE(pattern_matches("a", "a.b"));
  EXPECT_FALSE(pattern_matches("a.b", "a"));
  EXPECT_FALSE(pattern_matches("layers.*.up", "layers..down"));
}

}  // namespace
}  // namespace accelerate
