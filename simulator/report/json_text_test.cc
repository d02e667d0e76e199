#include "simulator/report/json_text.h"

#include <limits>

#include <gtest/gtest.h>

namespace accelerate::simulator {
namespace {

TEST(JsonText, KeepsAStringFromEndingItsScriptElement) {
  EXPECT_EQ(json_string("a</script><!--"), "\"a\\u003c/script>\\u003c!--\"");
  EXPECT_EQ(json_string("\"\\\n"), "\"\\\"\\\\\\n\"");
}

TEST(JsonText, ReplacesWhatIsNoText) { EXPECT_EQ(json_string("a\xff"), "\"a\xEF\xBF\xBD\""); }

TEST(JsonText, WritesNumbersThatReadBack) {
  EXPECT_EQ(json_number(0.1), "0.1");
  EXPECT_EQ(json_number(std::numeric_limits<double>::infinity()), "null");
}

TEST(JsonText, KeepsTheNanosecondsOfMicroseconds) {
  EXPECT_EQ(microseconds(0), "0.000");
  EXPECT_EQ(microseconds(1'000'007), "1000.007");
  EXPECT_EQ(microseconds(9'007'199'254'740'993), "9007199254740.993");
}

}  // namespace
}  // namespace accelerate::simulator
