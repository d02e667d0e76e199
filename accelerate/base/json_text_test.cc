#include "accelerate/base/json_text.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

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

std::string nested(size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); }

// What is read and what is written have the same limit.
TEST(JsonDepth, HasALimit) {
  EXPECT_TRUE(internal::parse_strictly(nested(internal::kMaxJsonDepth)).ok());
  EXPECT_FALSE(internal::parse_strictly(nested(internal::kMaxJsonDepth + 1)).ok());
  EXPECT_FALSE(internal::is_value_too_deep(ordered_json::parse(nested(internal::kMaxJsonDepth))));
  EXPECT_TRUE(
      internal::is_value_too_deep(ordered_json::parse(nested(internal::kMaxJsonDepth + 1))));
  // Brackets in texts are none, behind a quote of the text as well; and what is closed is over.
  const std::string many(300, '{');
  EXPECT_TRUE(internal::parse_strictly("[\"" + many + "\\\"" + many + "\"]").ok());
  std::string siblings = "[";
  for (int i = 0; i < 300; ++i) siblings += "[{}],";
  EXPECT_TRUE(internal::parse_strictly(siblings + "0]").ok());
}

TEST(ParseStrictly, RefusesAKeyThatItsOwnObjectHasTwice) {
  const auto error = [](const char* text) {
    return std::string(internal::parse_strictly(text).status().message());
  };
  EXPECT_EQ(error(R"({"a": {"x": 1}, "b": {"x": 1}, "c": [{"x": 1}, {"x": 2}], "x": 3})"), "");
  EXPECT_EQ(error(R"({"a": 1, "b": {}, "a": 2})"), R"(it has "a" twice)");
  EXPECT_EQ(error(R"([0, {"a": {"x": 1, "y": 2, "x": 3}}])"), R"(it has "x" twice)");
  EXPECT_EQ(error("{"), "it is not JSON");
}

TEST(IntegerOf, TakesWholeNumbersOf64BitsOnly) {
  EXPECT_EQ(internal::integer_of(json::parse("9223372036854775807")),
            std::numeric_limits<int64_t>::max());
  EXPECT_EQ(internal::integer_of(json::parse("-9223372036854775808")),
            std::numeric_limits<int64_t>::min());
  for (const char* text : {"9223372036854775808", "1.0", "\"1\"", "true", "null", "[1]"}) {
    EXPECT_THROW(internal::integer_of(json::parse(text)), std::invalid_argument) << text;
  }
  EXPECT_EQ(internal::integers_of(json::parse("[1, -2]")), (std::vector<int64_t>{1, -2}));
  EXPECT_THROW(internal::integers_of(json::parse("{\"a\": 1}")), std::invalid_argument);
}

TEST(PlainFileName, HasNoFolderInIt) {
  for (const char* name : {"a", "a.b", "...", ".a", "a b"}) {
    EXPECT_TRUE(internal::is_plain_file_name(name)) << name;
  }
  for (const char* name : {"", ".", "..", "a/b", "/a", "a/", "a\\b"}) {
    EXPECT_FALSE(internal::is_plain_file_name(name)) << name;
  }
  EXPECT_FALSE(internal::is_plain_file_name(std::string("a\0b", 3)));
}

// A reader must get the text back, whatever it looks like.
TEST(YamlText, QuotesTextsThatAReaderWouldTakeForSomethingElse) {
  for (const char* text :
       {"",     "yes",        "No",       "null", "~",  "1",  "1_000", "0x1f", "1.5", "1.0e+3",
        ".inf", "2026-01-31", "12:30:45", " x",   "x ", "#a", "a #b",  "a: b", "a:",  "- a",
        "[a]",  "{a}",        "&a",       "*a",   "!a", "%a", "@a",    "...",  "---"}) {
    EXPECT_EQ(yaml_text({{"k", text}}), "k: '" + std::string(text) + "'\n");
  }
  for (const char* text : {"a", "it's", "a#b", "a:b", "-a", "1e5", "yess", "2026-01", "a, b"}) {
    EXPECT_EQ(yaml_text({{"k", text}}), "k: " + std::string(text) + "\n");
  }
  EXPECT_EQ(yaml_text({{"k", 1e-5}}), "k: 1.0e-05\n");
  EXPECT_EQ(yaml_text({{"k", std::numeric_limits<double>::infinity()}}), "k: .inf\n");
  EXPECT_EQ(yaml_text({{"yes", "it's: so"}}), "'yes': 'it''s: so'\n");
}

TEST(YamlText, BreaksTextsBehindTheWidth) {
  const std::string fits(77, 'x'), longer(78, 'x');  // behind "k: ", up to column 80 and 81
  EXPECT_EQ(yaml_text({{"k", fits + " y"}}), "k: " + fits + " y\n");
  EXPECT_EQ(yaml_text({{"k", longer + " y"}}), "k: " + longer + "\n  y\n");
  EXPECT_EQ(yaml_text({{"k", longer + "  y"}}), "k: " + longer + "  y\n") << "two blanks";
  EXPECT_EQ(yaml_text({{"k", "xx y z"}}, {.width = 3}), "k: xx\n  y z\n");
}

}  // namespace
}  // namespace accelerate
