#include "accelerate/base/json_text.h"

#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "accelerate/base/json_keys.h"

namespace accelerate {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

TEST(JsonText, WritesNumbersThatReadBack) {
  EXPECT_EQ(json_text(0.1), "0.1");
  EXPECT_EQ(json_text(std::numeric_limits<double>::infinity()), "null");
  EXPECT_EQ(json_text(std::numeric_limits<double>::quiet_NaN()), "null");
}

TEST(JsonText, ReplacesBytesThatAreNotUtf8) {
  EXPECT_EQ(json_text("a\xff"), "\"a\xEF\xBF\xBD\"");
  EXPECT_EQ(json_text({{"\xff", 1}}), "{\"\xEF\xBF\xBD\":1}");
}

TEST(JsonText, KeepsTheOrderOfKeys) {
  EXPECT_EQ(json_text(ordered_json{{"b", 1}, {"a", 2}}), R"({"b":1,"a":2})");
  EXPECT_EQ(json_text(json{{"b", 1}, {"a", 2}}), R"({"a":2,"b":1})");
}

TEST(JsonKeys, StandAsInTheText) {
  EXPECT_EQ(internal::keys_in_order(R"({"b": {"x": 1}, "a": [{"y": "z"}], "\u0063": null})"),
            (std::vector<std::string>{"b", "a", "c"}));
  EXPECT_TRUE(internal::keys_in_order(R"([{"a": 1}])").empty());
  EXPECT_TRUE(internal::keys_in_order("{}").empty());
}

TEST(JsonText, IndentsLevels) {
  EXPECT_EQ(json_text(json{{"a", {1, 2}}}, 2), "{\n  \"a\": [\n    1,\n    2\n  ]\n}");
}

TEST(YamlText, ReplacesBytesThatAreNotUtf8InTextsWithControlCharacters) {
  EXPECT_EQ(yaml_text({{"k", "a\n\xff"}}, {.unicode = true}), "k: \"a\\n\xEF\xBF\xBD\"\n");
}

}  // namespace
}  // namespace accelerate
