#include "accelerate/base/json_text.h"

#include <cstddef>
#include <limits>
#include <string>

#include <gtest/gtest.h>

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

TEST(JsonText, IsWholeOrNot) {
  EXPECT_TRUE(internal::is_json("{\"traceEvents\": [{}]}\n"));
  EXPECT_FALSE(internal::is_json("{\"traceEvents\": [{}"));
  EXPECT_FALSE(internal::is_json(""));
}

TEST(JsonText, IndentsLevels) {
  EXPECT_EQ(json_text(json{{"a", {1, 2}}}, 2), "{\n  \"a\": [\n    1,\n    2\n  ]\n}");
}

TEST(YamlText, ReplacesBytesThatAreNotUtf8InTextsWithControlCharacters) {
  EXPECT_EQ(yaml_text({{"k", "a\n\xff"}}, {.unicode = true}), "k: \"a\\n\xEF\xBF\xBD\"\n");
}

TEST(JsonDepth, HasALimit) {
  const auto nested = [](size_t levels) {
    return ordered_json::parse(std::string(levels, '[') + std::string(levels, ']'));
  };
  EXPECT_FALSE(internal::is_value_too_deep(nested(internal::kMaxJsonDepth)));
  EXPECT_TRUE(internal::is_value_too_deep(nested(internal::kMaxJsonDepth + 1)));
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
