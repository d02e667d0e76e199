#include "accelerate/platform/environment.h"

#include <cstdlib>
#include <optional>

#include <gtest/gtest.h>

namespace accelerate {
namespace {

TEST(Environment, TellsNothingFromUnset) {
  Environment environment;
  environment.set("OF_A_RANK", "1");
  environment.set("EMPTY", "");
  environment.unset("UNSET");
  EXPECT_EQ(environment.get("OF_A_RANK"), "1");
  EXPECT_EQ(environment.get("EMPTY"), "");
  EXPECT_EQ(environment.get("UNSET"), std::nullopt);
  // Where a value is needed, nothing is none.
  EXPECT_EQ(environment.get_or("OF_A_RANK", "other"), "1");
  EXPECT_EQ(environment.get_or("EMPTY", "other"), "other");
  EXPECT_EQ(environment.get_or("UNSET", "other"), "other");
}

// Ranks of one process have environments of their own.
TEST(Environment, IsIndependentOfItsCopiesAndOfTheProcess) {
  ASSERT_EQ(setenv("OF_THE_PROCESS", "1", /*overwrite=*/1), 0);
  Environment first;
  first.set("OF_A_RANK", "1");
  Environment second = first;
  second.set("OF_A_RANK", "2");
  second.set("OF_THE_PROCESS", "2");
  first.unset("OF_THE_PROCESS");
  EXPECT_EQ(first.get("OF_A_RANK"), "1");
  EXPECT_EQ(second.get("OF_A_RANK"), "2");
  EXPECT_EQ(first.get("OF_THE_PROCESS"), std::nullopt);
  EXPECT_EQ(second.get("OF_THE_PROCESS"), "2");
  EXPECT_STREQ(std::getenv("OF_THE_PROCESS"), "1");
  EXPECT_EQ(std::getenv("OF_A_RANK"), nullptr);
  // What the process sets later shows through where a rank has said nothing.
  ASSERT_EQ(setenv("OF_THE_PROCESS", "3", /*overwrite=*/1), 0);
  EXPECT_EQ(Environment().get("OF_THE_PROCESS"), "3");
  EXPECT_EQ(second.get("OF_THE_PROCESS"), "2");
}

}  // namespace
}  // namespace accelerate
