#include "accelerate/values/json_values.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using nlohmann::json;

TEST(MergeDicts, MergesObjectsAndReplacesTheRest) {
  const json source = {{"a", {{"x", 1}, {"list", {3}}}}, {"b", 2}, {"c", {{"new", {{"y", 1}}}}}};
  const json destination = {{"a", {{"x", 0}, {"kept", true}, {"list", {1, 2}}}}, {"b", {{"z", 1}}}};
  EXPECT_EQ(merge_dicts(source, destination),
            json({{"a", {{"x", 1}, {"kept", true}, {"list", {3}}}},
                  {"b", 2},
                  {"c", {{"new", {{"y", 1}}}}}}));
}

TEST(MergeDicts, AnEmptyObjectChangesNothingThatIsThere) {
  const json empty = json::object();
  EXPECT_EQ(merge_dicts({{"a", empty}}, {{"a", 1}}), json({{"a", 1}}));
  EXPECT_EQ(merge_dicts({{"a", empty}}, empty), json({{"a", empty}}));
}

TEST(MergeDicts, NamesTheKeyWhereItCannotMerge) {
  try {
    merge_dicts({{"a", {{"b", {{"x", 1}}}}}}, {{"a", {{"b", 3}}}});
    FAIL() << "an object went into a number";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("into number at \"a.b\""));
  }
  EXPECT_THROW(merge_dicts({{"a", {{"x", 1}}}}, {{"a", nullptr}}), c10::ValueError);
  EXPECT_THROW(merge_dicts(json::array(), json::object()), c10::ValueError);
  EXPECT_THROW(merge_dicts(json::object(), 1), c10::ValueError);
}

}  // namespace
}  // namespace accelerate
