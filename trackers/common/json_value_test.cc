#include "trackers/common/json_value.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace accelerate::trackers {
namespace {

TEST(JsonValueTest, EachType) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const TrackerDict dict{
      {"none", std::nullopt},
      {"truth", true},
      {"count", std::numeric_limits<int64_t>::max()},
      {"rate", 0.1},
      {"whole", 1.0},
      {"nan", std::nan("")},
      {"inf", kInfinity},
      {"-inf", -kInfinity},
      {"text", "a\"b\nc\xc3\xa9"},
      {"tensor", TensorValue{.sizes = {2, 1}, .dtype = "float32", .values = {1, kInfinity}}},
      {"ints", TensorValue{.sizes = {2}, .dtype = "int64", .values = {1, 2}}},
      {"bools", TensorValue{.sizes = {}, .dtype = "bool", .values = {1}}},
      {"empty", TensorValue{.sizes = {0, 2}, .dtype = "int64"}},
      {"list", TrackerList{1, "x", TrackerList{}}},
      {"dict", {{"b", 1}, {"a", 2}}}};
  EXPECT_EQ(json_text(json_value(dict)),
            R"({"none":null,"truth":true,"count":9223372036854775807,"rate":0.1,"whole":1.0,)"
            R"("nan":"NaN","inf":"Infinity","-inf":"-Infinity","text":"a\"b\ncé",)"
            R"("tensor":[[1.0],["Infinity"]],"ints":[1,2],"bools":true,"empty":[],)"
            R"("list":[1,"x",[]],"dict":{"b":1,"a":2}})");
}

TEST(JsonValueTest, TheLastOfTwoCounts) {
  EXPECT_EQ(json_text(json_value(TrackerDict{{"a", 1}, {"a", 2}})), R"({"a":2})");
}

TEST(JsonValueTest, TextThatIsNoUtf8) {
  EXPECT_EQ(json_text(json_value(TrackerValue("a\xff"))), "\"a\xef\xbf\xbd\"");
  EXPECT_EQ(json_text(json_value(TrackerDict{{"\xff", 1}})), "{\"\xef\xbf\xbd\":1}");
}

TEST(JsonValueTest, ATensorWithTooFewElementsIsAList) {
  EXPECT_EQ(json_text(json_value(
                TrackerValue(TensorValue{.sizes = {3}, .dtype = "float32", .values = {1}}))),
            "[1.0]");
}

TEST(JsonValueTest, AWholeNumberThatIsTooLarge) {
  EXPECT_EQ(json_text(json_value(TrackerValue(TensorValue{
                .sizes = {2}, .dtype = "uint64", .values = {9223372036854775808.0, 7}}))),
            "[9.223372036854776e+18,7]");
}

TEST(JsonValueTest, Indented) {
  EXPECT_EQ(json_text(json_value(TrackerDict{{"a", 1}}), 2), "{\n  \"a\": 1\n}");
}

}  // namespace
}  // namespace accelerate::trackers
