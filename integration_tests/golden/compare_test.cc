#include "integration_tests/golden/compare.h"

#include <cstdint>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "integration_tests/golden/errors.h"

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

TEST(Compare, AnyVariantThatDependsOnHashes) {
  const char* expected = R"({"map": {"hash_dependent": true, "equal_as_sets": false, "variants":
      [[["a", 1], ["b", 0]], [["b", 0], ["c", 1]]]}})";
  EXPECT_TRUE(equal(expected, R"({"map": [["b", 0], ["c", 1]]})"));
  EXPECT_EQ(path(expected, R"({"map": [["b", 0], ["a", 1]]})"), "map[0]");
  EXPECT_EQ(path(expected, R"({"map": []})"), "map");
  const char* in_any_order = R"({"hash_dependent": true, "equal_as_sets": true, "variants":
      [[["a", 1], ["b", 0], ["c", 1]]]})";
  EXPECT_TRUE(equal(in_any_order, R"([["c", 1], ["a", 1], ["b", 0]])"));
  EXPECT_FALSE(equal(in_any_order, R"([["c", 1], ["a", 0], ["b", 0]])"));
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
  const char* expected = R"json({"len": {"error": {"type": "TypeError", "message":
      "object of type 'Range' has no len()"}}})json";
  EXPECT_TRUE(equal(expected, R"({"len": {"error": {"ours": true, "type": "ValueError", "message":
      "the stream does not know its size"}}})"));
  EXPECT_EQ(path(expected, R"({"len": {"error": {"ours": false, "type": "ValueError", "message":
      "the stream does not know its size"}}})"),
            "len");
  EXPECT_EQ(path(expected, R"({"len": 3})"), "len");
}

TEST(Compare, AnExpectedErrorIsNotMetByAnErrorOfAnotherType) {
  const char* expected = R"({"error": {"type": "NotImplementedError", "message":
      "Please define them in the class definition: `name`"}})";
  EXPECT_TRUE(equal(expected, R"({"error": {"ours": true, "type": "NotImplementedError", "message":
      "Please define them in the class definition: `name`"}})"));
  const auto difference =
      first_difference(parse(expected), parse(R"({"error": {"ours": true, "type": "ValueError",
          "message": "Please define them in the class definition: `name`"}})"));
  ASSERT_TRUE(difference);
  EXPECT_THAT(difference->got, HasSubstr("its type is ValueError, not NotImplementedError"));
  EXPECT_FALSE(equal(expected, R"({"error": {"ours": true, "message":
      "Please define them in the class definition: `name`"}})"));
  // No error matches a type that the table lacks.
  EXPECT_FALSE(equal(R"({"error": {"type": "ZeroDivisionError", "message": "division by zero"}})",
                     R"({"error": {"ours": true, "type": "ValueError", "message": "zero"}})"));
}

TEST(Compare, AMessageThatNobodyThoughtOfIsMetByNothing) {
  const char* expected = R"({"error": {"type": "ValueError", "message": "the moon is full"}})";
  const auto difference = first_difference(
      parse(expected),
      parse(R"({"error": {"ours": true, "type": "ValueError", "message": "the moon is full"}})"));
  ASSERT_TRUE(difference);
  EXPECT_THAT(difference->got, HasSubstr("no words of ours are known for this ValueError"));
}

TEST(Compare, AnErrorThatTheTableKnowsMustSayTheWordsThatMatter) {
  const char* expected =
      R"({"error": {"type": "ValueError", "message": "To use `BatchSamplerShard` in )"
      R"(`split_batches` mode, the batch size (3) needs to be a round multiple of the number of )"
      R"(processes (2)."}})";
  EXPECT_TRUE(equal(expected, R"({"error": {"ours": true, "type": "ValueError", "message":
      "split_batches: the batch size 3 is not divisible by the number of data shares, 2"}})"));
  const auto difference =
      first_difference(parse(expected), parse(R"({"error": {"ours": true, "type": "ValueError",
          "message":
          "split_batches: the batch size 4 is not divisible by the number of data shares, 2"}})"));
  ASSERT_TRUE(difference);
  EXPECT_THAT(
      difference->got,
      HasSubstr(
          "does not say \"the batch size 3 is not divisible by the number of data shares, 2\""));
  EXPECT_FALSE(equal(expected, R"({"error": {"ours": true, "type": "ValueError",
                                             "message": "rank 5 is not in a world of 2"}})"));
}

TEST(Compare, AnErrorOfADecisionIsOneOfItsTypesAndSaysOneOfItsWords) {
  json expected = our_error({"ValueError"}, {"no room"});
  auto meets = [&expected](const char* type, const char* message) {
    const json got = {{"error", {{"ours", true}, {"type", type}, {"message", message}}}};
    return !first_difference(expected, got);
  };
  EXPECT_TRUE(meets("ValueError", "there is no room left"));
  EXPECT_FALSE(meets("ValueError", "there is none"));
  EXPECT_FALSE(meets("Error", "there is no room left"));
  expect_our_error(expected, {"Error"}, {"too late"});
  EXPECT_TRUE(meets("Error", "too late for that"));
  EXPECT_FALSE(meets("Error", "there is none"));
}

TEST(Compare, ADecisionLeavesAnErrorThatWasRecorded) {
  const json recorded = parse(R"({"error": {"type": "ValueError", "message": "taken"}})");
  json out = recorded;
  expect_our_error(out, {"Error"}, {"too late"});
  EXPECT_EQ(out, recorded);
}

TEST(Compare, WhatTheCompilerRefusesIsNoError) {
  EXPECT_FALSE(equal(R"({"error": {"type": "TypeError", "message": "no"}})",
                     R"({"refused_by_compiler": true})"));
  EXPECT_TRUE(equal(R"({"refused_by_compiler": true})", R"({"refused_by_compiler": true})"));
}

TEST(Compare, AnErrorBesideOtherFieldsIsMetByOneOfOursAndTheyAreCompared) {
  const char* expected = R"({"error": {"type": "ValueError", "message":
      "invalid truth value x"}, "n": 1})";
  EXPECT_TRUE(equal(expected, R"({"error": {"ours": true, "type": "ValueError", "message":
      "x is neither true nor false"}, "n": 1})"));
  EXPECT_EQ(path(expected, R"({"error": {"ours": true, "type": "ValueError", "message":
      "x is neither true nor false"}, "n": 2})"),
            "n");
  EXPECT_EQ(path(expected, R"({"error": {"ours": false, "type": "ValueError", "message":
      "x is neither true nor false"}, "n": 1})"),
            "error");
  EXPECT_EQ(path(expected, R"({"error": {"ours": true, "type": "Error"}, "n": 1})"), "error");
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
