#include "accelerate/base/document.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "accelerate/base/json_text.h"

namespace accelerate {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The message of the DocumentError that the function throws.
template <typename Function>
std::string error_of(Function&& function) {
  try {
    function();
  } catch (const DocumentError& error) {
    return error.what();
  }
  return "no error";
}

std::string json_error(const std::string& text, const DocumentOptions& options = {}) {
  return error_of([&] { Document::json(text, options); });
}

std::string yaml_error(const std::string& text, const DocumentOptions& options = {.name = "c"}) {
  return error_of([&] { Document::yaml(text, options); });
}

TEST(JsonDocument, KeepsTheOrderOfKeys) {
  const std::string text = R"({"b": {"x": 1}, "a": [{"y": "z"}, -2, 0.5], "\u0063": null})";
  const Document document = Document::json(text);
  EXPECT_EQ(document.value().dump(), R"({"b":{"x":1},"a":[{"y":"z"},-2,0.5],"c":null})");
  EXPECT_EQ(document.value(), ordered_json::parse(text));
  for (const char* single : {"1", "\"a\"", "null", "true", "[]", "{}", " {\"a\":[]}\n"}) {
    EXPECT_EQ(Document::json(single).value(), ordered_json::parse(single)) << single;
  }
}

TEST(JsonDocument, RefusesWhatIsNotJson) {
  EXPECT_THAT(json_error("{"), StartsWith("it is not JSON: parse error at line 1, column 2: "));
  EXPECT_THAT(json_error("{\"a\": 1,\n}", {.name = "a.json"}),
              StartsWith("a.json: it is not JSON: parse error at line 2, column 1: "));
  EXPECT_EQ(json_error("[1e999]"), "it is not JSON: number overflow parsing '1e999'");
  EXPECT_EQ(json_error(std::string("{}\0", 3)), "it is not JSON: it has a byte of value 0");
  for (const char* wrong : {"", "nul", "[1] 2", "{1: 2}", "\"\xff\"", "[Infinity]", "[NaN]", "'a'",
                            "[1,]", "// a\n1"}) {
    EXPECT_THAT(json_error(wrong), StartsWith("it is not JSON: ")) << wrong;
  }
}

std::string nested(size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); }

// What is read and what is written have the same limit.
TEST(JsonDocument, HasALimitOfDepth) {
  EXPECT_EQ(json_error(nested(internal::kMaxJsonDepth)), "no error");
  EXPECT_EQ(json_error(nested(internal::kMaxJsonDepth + 1)), "it is nested too deeply");
  EXPECT_EQ(json_error(std::string(100'000, '[')), "it is nested too deeply");
  // Brackets in texts are none, behind a quote of the text as well; and what is closed is over.
  const std::string many(300, '{');
  EXPECT_EQ(json_error("[\"" + many + "\\\"" + many + "\"]"), "no error");
  std::string siblings = "[";
  for (int i = 0; i < 300; ++i) siblings += "[{}],";
  EXPECT_EQ(json_error(siblings + "0]"), "no error");
}

TEST(JsonDocument, RefusesAKeyThatItsOwnObjectHasTwice) {
  EXPECT_EQ(json_error(R"({"a": {"x": 1}, "b": {"x": 1}, "c": [{"x": 1}, {"x": 2}], "x": 3})"),
            "no error");
  EXPECT_EQ(json_error(R"({"a": 1, "b": {}, "a": 2})"), R"(it has "a" twice)");
  EXPECT_EQ(json_error(R"([0, {"a": {"x": 1, "y": 2, "x": 3}}])"), R"(it has "x" twice)");
}

TEST(JsonDocument, TakesTheLastOfTwoEqualKeysWhereThatIsAsked) {
  const std::string text = "{\"a\": {\"x\": 1},\n \"b\": 2,\n \"a\": [3]}";
  const Document document = Document::json(text, {.name = "c.json", .last_key_counts = true});
  EXPECT_EQ(document.value().dump(), R"({"a":[3],"b":2})");
  EXPECT_THAT(document.notes(),
              ElementsAre("c.json:3: the key a occurs twice; the last one counts"));
}

TEST(JsonDocument, TakesPythonsInfinitiesWhereThatIsAsked) {
  const std::string text = R"({"a": Infinity, "b": [-Infinity, "Infinity", "\"Infinity"]})";
  const ordered_json value = Document::json(text, {.python_numbers = true}).value();
  EXPECT_EQ(value["a"], std::numeric_limits<double>::infinity());
  EXPECT_EQ(value["b"][0], -std::numeric_limits<double>::infinity());
  EXPECT_EQ(value["b"][1], "Infinity");
  EXPECT_EQ(value["b"][2], "\"Infinity");
  EXPECT_THAT(json_error(text), StartsWith("it is not JSON"));
}

TEST(JsonValue, IsTheValueOrAStatus) {
  EXPECT_EQ(json_value("[1, {}]")->dump(), "[1,{}]");
  EXPECT_EQ(json_value("[1, {}", {.name = "a"}).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(json_value("[1, {}", {.name = "a"}).status().message()),
              StartsWith("a: it is not JSON: "));
}

TEST(Document, KnowsTheLineOfEachValue) {
  const std::string json = "{\n\"a\": 1\n, \"b/c\":\n [2,\n  {\"d\": \"e\"},\n  3\n]}";
  EXPECT_THAT(
      Document::json(json).lines(),
      ElementsAre(std::pair("/a", 2), std::pair("/b~1c", 3), std::pair("/b~1c/0", 4),
                  std::pair("/b~1c/1", 5), std::pair("/b~1c/1/d", 5), std::pair("/b~1c/2", 6)));
  const std::string yaml = "a: 1\nb/c:\n - 2\n - d: e\n";
  EXPECT_THAT(Document::yaml(yaml).lines(),
              ElementsAre(std::pair("/a", 1), std::pair("/b~1c", 2), std::pair("/b~1c/0", 3),
                          std::pair("/b~1c/1", 4), std::pair("/b~1c/1/d", 4)));
}

TEST(YamlDocument, MergesMapsAndRepeatsWhatAliasesName) {
  const std::string text =
      "base: &base {a: 1, b: 2}\nown:\n  b: 3\n  <<: *base\n"
      "list:\n  <<: [{a: 4, c: 5}, {a: 6, d: 7}]\nagain: *base\n";
  const Document document = Document::yaml(text);
  EXPECT_EQ(document.value(), ordered_json::parse(R"({
    "base": {"a": 1, "b": 2}, "own": {"a": 1, "b": 3}, "list": {"a": 4, "d": 7, "c": 5},
    "again": {"a": 1, "b": 2}})"));
  EXPECT_EQ(document.lines().at("/own/a"), 1);
  EXPECT_EQ(document.lines().at("/own/b"), 3);
  EXPECT_EQ(yaml_error("a:\n  <<: 3\n"), "c:2:7: << merges a map or a list of maps");
  EXPECT_THAT(yaml_error("a: &a\n  <<: *a\n"), HasSubstr("too deep"));
}

// The root has depth 0, and 8 is the last one that is read.
TEST(YamlDocument, HasALimitOfDepth) {
  EXPECT_EQ(Document::yaml(nested(9)).value().dump(), nested(9));
  EXPECT_EQ(yaml_error(nested(10)), "c:1:10: too deep");
  EXPECT_EQ(yaml_error("a: " + nested(8)), "no error");
  EXPECT_EQ(yaml_error("a: " + nested(9)), "c:1:12: too deep");
}

TEST(YamlDocument, HasALimitOfValues) {
  std::string text = "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9]\n";
  for (const char* level : {"b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n",
                            "c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b]\n"}) {
    text += level;
  }
  EXPECT_EQ(yaml_error(text), "no error");
  EXPECT_THAT(yaml_error(text + "d: [*c, *c, *c, *c, *c, *c, *c, *c, *c, *c, *c, *c, *c, *c, *c, "
                                "*c, *c, *c, *c, *c, *c, *c, *c, *c, *c, *c]\n"),
              HasSubstr("too many values"));
}

TEST(YamlDocument, RefusesOrNotesAKeyThatStandsTwice) {
  const std::string text = "a: 1\nb: {c: 2, c: 3}\na: 4\n";
  EXPECT_EQ(yaml_error(text), "c:2:11: it has \"c\" twice");
  const Document document = Document::yaml(text, {.name = "c.yaml", .last_key_counts = true});
  EXPECT_EQ(document.value().dump(), R"({"a":4,"b":{"c":3}})");
  EXPECT_THAT(document.notes(),
              ElementsAre("c.yaml:2: the key c occurs twice; the last one counts",
                          "c.yaml:3: the key a occurs twice; the last one counts"));
}

TEST(YamlDocument, ReadsListsAndTuplesOfPython) {
  EXPECT_EQ(Document::yaml("a: !!python/tuple [1, no]\nb: !!python/list\n- x\n").value().dump(),
            R"({"a":[1,false],"b":["x"]})");
  EXPECT_THAT(yaml_error("a: !!python/object/apply:os.system [x]\n"), HasSubstr("is unknown"));
}

TEST(YamlDocument, KeepsWordsAsTextsWhereThatIsAsked) {
  const std::string text = "a: [0x10, 1 %, yes, '7', ~]\n";
  EXPECT_EQ(Document::yaml(text, {.words_are_texts = true}).value().dump(),
            R"({"a":["0x10","1 %","yes","7",null]})");
}

TEST(YamlDocument, RefusesWhatIsNotOneDocument) {
  EXPECT_TRUE(Document::yaml("").value().is_null());
  EXPECT_THAT(yaml_error("a: [unclosed\n"), StartsWith("c:2:1: "));
  EXPECT_THAT(yaml_error("? [a]\n: 1\n"), StartsWith("c:1:3: a key is not a plain word"));
  EXPECT_THAT(yaml_error("a: 1\n---\nb: 2\n"), StartsWith("c:2:1: a second document begins"));
  EXPECT_EQ(yaml_error("a: 1\n...\n"), "no error");
  // What stands behind a document is another one, which has no end.
  EXPECT_THAT(yaml_error("{a: 1},\n"), StartsWith("c:1:7: a second document begins"));
}

TEST(DocumentNode, ReadsValuesOfEachType) {
  const std::string text =
      R"({"on": true, "count": 3, "rate": 0.5, "name": "n", "sizes": [1, -2], "kind": "b"})";
  const Document document = Document::json(text);
  const DocumentNode root = document.root();
  EXPECT_TRUE(root.at("on").boolean());
  EXPECT_EQ(root.at("count").integer(), 3);
  EXPECT_EQ(root.at("count").number(), 3);
  EXPECT_EQ(root.at("rate").number(), 0.5);
  EXPECT_EQ(root.at("name").text(), "n");
  EXPECT_EQ(root.at("sizes").integers(), (std::vector<int64_t>{1, -2}));
  EXPECT_EQ(root.at("kind").choice("a kind", {"a", "b"}), 1);
  EXPECT_EQ(root.at("sizes").items()[1].pointer(), "/sizes/1");
  EXPECT_EQ(root.members()[3].key(), "name");
  EXPECT_EQ(root.members()[3].pointer(), "/name");
  EXPECT_FALSE(root.has("none"));
  EXPECT_FALSE(root.at("count").has("none"));
}

TEST(DocumentNode, SaysWhatWasExpectedWhereAndWhatWasFound) {
  const std::string text = "{\"a/b\": {\"sizes\": [1,\n -2.5]},\n \"name\": 3}";
  const Document document = Document::json(text, {.name = "d.json"});
  const DocumentNode root = document.root();
  EXPECT_EQ(error_of([&] { root.at("a/b").at("sizes").integers(); }),
            "d.json: expected a 64-bit integer at \"/a~1b/sizes/1\" (line 2), found -2.5");
  EXPECT_EQ(error_of([&] { root.at("name").text("a name"); }),
            "d.json: expected a name at \"/name\" (line 3), found 3");
  EXPECT_EQ(error_of([&] { root.at("a/b").at("shape"); }),
            "d.json: expected a value at \"/a~1b/shape\" (line 1)");
  EXPECT_EQ(error_of([&] { root.at("name").at("x"); }),
            "d.json: expected an object at \"/name\" (line 3), found 3");
  EXPECT_EQ(error_of([&] { root.items(); }),
            "d.json: expected a list, found {\"a/b\":{\"sizes\":[1,-2.5]},\"name\":3}");
  EXPECT_EQ(error_of([&] { root.at("name").refuse("a number cannot be a name"); }),
            "d.json: a number cannot be a name at \"/name\" (line 3)");
  EXPECT_EQ(error_of([&] { root.check_keys({"a/b", "names"}); }),
            "d.json: expected a key (did you mean \"names\"?) at \"/name\" (line 3)");
  EXPECT_EQ(error_of([&] { root.at("name").check_keys({"x", "y"}); }),
            "d.json: expected an object with x, y at \"/name\" (line 3), found 3");
}

TEST(DocumentNode, SaysInOneLineWhatQuotesNamesOfAnyCharacters) {
  const std::string text = R"({"a": 1})";
  const Document document = Document::json(text);
  EXPECT_EQ(error_of([&] { document.root().at("a").refuse(std::string("x\0y\nz", 5)); }),
            "x\\0y\\nz at \"/a\"");
}

TEST(DocumentNode, TakesWholeNumbersOf64BitsOnly) {
  const auto read = [](const char* text) { return Document::json(text).root().integer(); };
  EXPECT_EQ(read("9223372036854775807"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(read("-9223372036854775808"), std::numeric_limits<int64_t>::min());
  for (const char* text : {"9223372036854775808", "1.0", "\"1\"", "true", "null", "[1]"}) {
    EXPECT_EQ(error_of([&] { read(text); }),
              absl::StrCat("expected a 64-bit integer, found ", text));
  }
}

TEST(DocumentNode, ChecksRanges) {
  const std::string text = R"([0, 5, 18446744073709551615, "h10", 1e300])";
  const Document document = Document::json(text);
  const std::vector<DocumentNode> items = document.root().items();
  EXPECT_EQ(error_of([&] { items[0].integer("a count", 1, 9); }),
            "expected a count at \"/0\", found 0");
  EXPECT_EQ(items[1].integer("a count", 1, 9), 5);
  EXPECT_THAT(error_of([&] { items[2].integer(); }), HasSubstr("found 18446744073709551615"));
  EXPECT_EQ(items[2].number(), 18446744073709551615.0);
  EXPECT_EQ(error_of([&] { items[3].choice("a device", {"h100", "tpu"}); }),
            "expected a device (did you mean \"h100\"?) at \"/3\", found \"h10\"");
  EXPECT_EQ(error_of([&] { items[4].number("a rate", 0, 1); }),
            "expected a rate at \"/4\", found 1e+300");
}

TEST(JsonDocument, TellsManyKeysApart) {
  std::string text = "{";
  for (int i = 0; i < 40; ++i) absl::StrAppend(&text, "\"k", i, "\": ", i, ", ");
  const ordered_json value = Document::json(text + "\"last\": 40}").value();
  EXPECT_EQ(value.size(), 41);
  EXPECT_EQ(value["k39"], 39);
  for (const char* key : {"k0", "k15", "k16", "k39"}) {
    EXPECT_EQ(json_error(absl::StrCat(text, "\"", key, "\": 0}")),
              absl::StrCat("it has \"", key, "\" twice"));
  }
}

TEST(DocumentNode, ShowsTheBeginningOfWhatWasFound) {
  const std::string text = absl::StrCat("[\"", std::string(70, 'x'), "\"]");
  const Document document = Document::json(text);
  EXPECT_EQ(error_of([&] { document.root().items()[0].number(); }),
            absl::StrCat("expected a number at \"/0\", found \"", std::string(63, 'x'), "..."));
  const std::string long_key = absl::StrCat("{\"", std::string(1'000'000, 'x'), "\": 1}");
  EXPECT_LT(error_of([&] { Document::json(long_key).root().check_keys({"a"}); }).size(), 300);
  EXPECT_LT(json_error(std::string(1'000'000, 'x')).size(), 300);
}

}  // namespace
}  // namespace accelerate
