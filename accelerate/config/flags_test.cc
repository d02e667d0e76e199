#include "accelerate/config/flags.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

Environment with(const char* value) {
  Environment environment;
  environment.set("FLAG", value);
  return environment;
}

TEST(Flags, ReadsTheUsualWords) {
  for (const char* text : {"y", "YES", "t", "True", "on", "1"}) {
    EXPECT_TRUE(flag_from_env(with(text), "FLAG", false)) << text;
  }
  for (const char* text : {"n", "NO", "f", "False", "off", "0"}) {
    EXPECT_FALSE(flag_from_env(with(text), "FLAG", true)) << text;
  }
  EXPECT_TRUE(flag_from_env(with(""), "FLAG", true));
  EXPECT_THROW(flag_from_env(with("maybe"), "FLAG", true), c10::ValueError);
}

TEST(Flags, ReadsCounts) {
  EXPECT_EQ(count_from_env(with("4"), "FLAG", 1), 4);
  EXPECT_EQ(count_from_env(with(""), "FLAG", 1), std::nullopt);
  for (const char* text : {"0", "-1", "4x", "x", "1.5", "99999999999999999999"}) {
    EXPECT_THROW(count_from_env(with(text), "FLAG", 1), c10::ValueError) << text;
  }
}

}  // namespace
}  // namespace accelerate
