#include "accelerate/values/json_values.h"

#include <cmath>
#include <limits>
#include <utility>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "accelerate/base/json_text.h"

namespace accelerate::internal {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// By way of a file.
Json through_text(const Json& value) {
  return unwrap_numbers(Json::parse(wrap_numbers(value).dump()));
}

TEST(SpelledNumbers, AreStrings) {
  const Json value = {1.5, kInfinity, {{"low", -kInfinity}, {"count", 3}}, nullptr};
  EXPECT_EQ(spell_numbers(value).dump(), R"([1.5,"inf",{"low":"-inf","count":3},null])");
  EXPECT_EQ(read_numbers(Json::parse(spell_numbers(value).dump())), value);
  EXPECT_EQ(spell_numbers(std::nan("")), "nan");
  EXPECT_TRUE(std::isnan(read_numbers("nan").get<double>()));
  EXPECT_EQ(read_numbers("infinite"), "infinite");
}

TEST(WrappedNumbers, StandOutAmongStrings) {
  EXPECT_EQ(wrap_numbers({{"best", kInfinity}, {"name", "inf"}, {"x", 2.5}}).dump(),
            R"({"best":{"number":"inf"},"name":"inf","x":2.5})");
  EXPECT_EQ(wrap_numbers(-kInfinity).dump(), R"({"number":"-inf"})");
  EXPECT_EQ(wrap_numbers(std::nan("")).dump(), R"({"number":"nan"})");
}

TEST(WrappedNumbers, ComeBackAsTheyWere) {
  for (const Json& value : {
           Json(), Json(kInfinity), Json(-kInfinity), Json("inf"), Json("nan"), Json(0.1), Json(-7),
           Json(std::numeric_limits<uint64_t>::max()), Json::object(), Json::array(),
           Json{kInfinity, "inf", {{"a", {-kInfinity}}}},
           Json{{"b", kInfinity}, {"a", "-inf"}},  // in this order
       }) {
    EXPECT_EQ(through_text(value).dump(), value.dump());
    EXPECT_EQ(through_text(value), value);
  }
  EXPECT_TRUE(std::isnan(through_text(std::nan("")).get<double>()));
  EXPECT_TRUE(std::isnan(through_text({{"number", std::nan("")}})["number"].get<double>()));
}

TEST(WrappedNumbers, WhatLooksLikeOneComesBackAsItWas) {
  Json value = "inf";
  for (int depth = 0; depth < 5; ++depth) {
    value = Json{{"number", value}};
    EXPECT_EQ(through_text(value), value) << value;
  }
  value = kInfinity;
  for (int depth = 0; depth < 5; ++depth) {
    value = Json{{"number", value}};
    EXPECT_EQ(through_text(value), value) << value;
  }
  for (const Json& other : {
           Json{{"number", nullptr}},
           Json{{"number", 3}},
           Json{{"number", "three"}},
           Json{{"number", Json::array()}},
           Json{{"number", Json::object()}},
           Json{{"number", "nan"}, {"text", "nan"}},
           Json{{"Number", "inf"}},
           Json{{"number", {{"number", {{"other", kInfinity}}}}}},
           Json{{"number", {{{"number", "inf"}}, kInfinity}}},
       }) {
    EXPECT_EQ(through_text(other), other) << other;
    EXPECT_EQ(through_text(Json{other, {{"in", other}}}), (Json{other, {{"in", other}}})) << other;
  }
}

Json nested(size_t depth, const Json& innermost) {
  Json value = innermost;
  for (size_t i = 0; i < depth; ++i) value = Json::array({std::move(value)});
  return value;
}

TEST(Numbers, AreNotWrittenWhereTheyCouldNotBeRead) {
  const Json deepest = nested(kMaxJsonDepth, 1);
  EXPECT_EQ(through_text(deepest), deepest);
  EXPECT_EQ(spell_numbers(deepest), deepest);
  EXPECT_THROW(wrap_numbers(nested(kMaxJsonDepth + 1, 1)), c10::ValueError);
  EXPECT_THROW(spell_numbers(nested(kMaxJsonDepth + 1, 1)), c10::ValueError);
  // Wrapping turns a number at the last level into one more level.
  EXPECT_THROW(wrap_numbers(nested(kMaxJsonDepth, kInfinity)), c10::ValueError);
  EXPECT_NO_THROW(wrap_numbers(nested(kMaxJsonDepth - 1, kInfinity)));
}

}  // namespace
}  // namespace accelerate::internal
