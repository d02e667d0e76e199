#include "integration_tests/golden/compare.h"

#include <cstdint>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::golden {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json parse(const char* text) { return json::parse(text); }

bool equal(const char* expected, const char* got) {
  return !first_difference(parse(expected), parse(got));
}

std::string path(const char* expected, const char* got) {
  auto difference = first_difference(parse(expected), parse(got));
  return difference ? difference->path : "equal";
}

TEST(Compare, IntegersExactly) {
  EXPECT_TRUE(equal("1568788725991793368", "1568788725991793368"));
  EXPECT_FALSE(equal("1568788725991793368", "1568788725991793369"));
  EXPECT_FALSE(equal("-1", "18446744073709551615"));
  EXPECT_FALSE(equal("1", "true"));
}

TEST(Compare, FloatsUpToOneInAMillion) {
  EXPECT_TRUE(equal("1.0", "1.0000009"));
  EXPECT_FALSE(equal("1.0", "1.000002"));
  EXPECT_TRUE(equal("5.0", "5"));
  EXPECT_TRUE(equal("-0.0", "0.0"));
  EXPECT_FALSE(equal("0.0", "1e-9"));
  EXPECT_FALSE(equal("1.0", "-1.0"));
}

TEST(Compare, AnExpectedErrorIsMetByAnErrorOfOursOnly) {
  const char* expected = R"({"len": {"error": {"type": "TypeError", "message": "no length"}}})";
  EXPECT_TRUE(equal(expected, R"({"len": {"error": {"ours": true, "message": "unknown"}}})"));
  EXPECT_EQ(path(expected, R"({"len": {"error": {"ours": false, "message": "bad_alloc"}}})"),
            "len");
  EXPECT_EQ(path(expected, R"({"len": 3})"), "len");
}

TEST(Compare, AnErrorBesideOtherFieldsIsMetByOneOfOursAndTheyAreCompared) {
  const char* expected = R"({"error": {"type": "ValueError", "message": "taken"}, "n": 1})";
  EXPECT_TRUE(equal(expected, R"({"error": {"ours": true, "message": "there"}, "n": 1})"));
  EXPECT_EQ(path(expected, R"({"error": {"ours": true, "message": "there"}, "n": 2})"), "n");
  EXPECT_EQ(path(expected, R"({"error": {"ours": false, "message": "there"}, "n": 1})"),
            "error.message");
  EXPECT_EQ(path(expected, R"({"n": 1})"), "error");
}

TEST(Compare, AnUnexpectedErrorIsShownByItsMessage) {
  auto difference = first_difference(
      parse(R"({"ranks": [{"len": 2}]})"),
      parse(R"({"ranks": [{"error": {"ours": true, "message": "first\nsecond"}}]})"));
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->path, "ranks[0]");
  EXPECT_EQ(difference->expected, R"({"len":2})");
  EXPECT_EQ(difference->got, "error: first second");
}

TEST(Compare, TellsTheFirstPlace) {
  EXPECT_EQ(path(R"({"ranks": [{}, {"log": [[{"g": [0, 1]}, {"g": [2, 3]}]]}]})",
                 R"({"ranks": [{}, {"log": [[{"g": [0, 1]}, {"g": [2, 4]}]]}]})"),
            "ranks[1].log[0][1].g");
  EXPECT_EQ(path(R"({"a": 1})", R"({})"), "a");
  EXPECT_EQ(path(R"({})", R"({"a": 1})"), "a");
  EXPECT_EQ(path(R"([[1], [2]])", R"([[1]])"), "");
  EXPECT_EQ(path(R"([[1], [2]])", R"([[3]])"), "[0]");
  EXPECT_EQ(path(R"([])", R"({})"), "");
}

TEST(Compare, ListsOfNumbersAreShownAsAWholeAndShortened) {
  json expected = json::array();
  for (int64_t i = 0; i < 1000; ++i) expected.push_back(i);
  json got = expected;
  got.back() = -1;
  auto difference = first_difference(expected, got);
  ASSERT_TRUE(difference);
  EXPECT_THAT(difference->expected, HasSubstr("[0,1,2,3"));
  EXPECT_LE(difference->expected.size(), 200);
}

}  // namespace
}  // namespace accelerate::golden
