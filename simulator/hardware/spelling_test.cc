#include "accelerate/base/message_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Spelling, PutsTheClosestNameFirst) {
  const std::vector<std::string> names = {"v100", "a100-80", "h100", "h200"};
  EXPECT_THAT(nearest_names("h10", names), ElementsAre("h100", "v100", "h200"));
  EXPECT_THAT(nearest_names("H200", names), ElementsAre("h200", "h100", "v100"));
}

TEST(Spelling, OffersNothingThatIsMostlyDifferent) {
  EXPECT_THAT(nearest_names("xyzzy", {"h100", "mi300x"}), IsEmpty());
  EXPECT_THAT(nearest_names(std::string(100000, 'h'), {"h100"}), IsEmpty());
}

TEST(Spelling, ListsAllNamesWhenNoneIsNear) {
  EXPECT_EQ(suggestion("hh100", {"h100", "tpu-v4"}), "did you mean \"h100\"?");
  EXPECT_EQ(suggestion("quantum", {"h100", "tpu-v4"}), "one of h100, tpu-v4");
}

}  // namespace
}  // namespace accelerate::simulator
