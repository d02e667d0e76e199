#include "trackers/common/formats.h"
#include "accelerate/base/json_text.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trackers/testing/png_reader.h"

namespace accelerate::trackers {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

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
  EXPECT_EQ(json_text(json_value(
                TrackerValue(TensorValue{.dtype = "int64", .values = {-9223372036854775808.0}}))),
            "-9223372036854775808");
}

TEST(JsonValueTest, Indented) {
  EXPECT_EQ(json_text(json_value(TrackerDict{{"a", 1}}), 2), "{\n  \"a\": 1\n}");
}

TEST(Listify, TurnsTensorsIntoListsAndNumbers) {
  const TensorValue floats{.sizes = {2, 1}, .dtype = "bfloat16", .values = {0.5, 1}};
  const TensorValue scalar{.dtype = "int64", .values = {3}};
  const TensorValue truths{.sizes = {2}, .dtype = "bool", .values = {1, 0}};
  const TensorValue nothing{.sizes = {2, 0}, .dtype = "float32"};
  EXPECT_EQ(listify(TrackerDict{{"a", floats},
                                {"b", {{"c", TrackerList{scalar, "text"}}}},
                                {"d", truths},
                                {"e", nothing},
                                {"f", std::nullopt}}),
            (TrackerDict{{"a", TrackerList{TrackerList{0.5}, TrackerList{1.0}}},
                         {"b", {{"c", TrackerList{3, "text"}}}},
                         {"d", TrackerList{true, false}},
                         {"e", TrackerList{TrackerList{}, TrackerList{}}},
                         {"f", std::nullopt}}));
  EXPECT_EQ(listify(TensorValue{.dtype = "uint64", .values = {18446744073709551615.0}}),
            TrackerValue(18446744073709551615.0));
}

TEST(YamlText, WritesSortedBlocks) {
  EXPECT_EQ(yaml_text({{"lr", 0.1},
                       {"b", {{"z", 1}, {"a", std::nullopt}}},
                       {"flag", true},
                       {"lr", 1e-5},
                       {"empty", TrackerDict()},
                       {"none", TrackerList()},
                       {"list", TrackerList{1, "x", TrackerList{2, 3}, TrackerDict{{"k", 4}}}}}),
            "b:\n  a: null\n  z: 1\nempty: {}\nflag: true\nlist:\n- 1\n- x\n- - 2\n  - 3\n"
            "- k: 4\nlr: 1.0e-05\nnone: []\n");
  EXPECT_EQ(yaml_text({}), "{}\n");
}

TEST(YamlText, KeepsWhatIsNotFinite) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(yaml_text({{"a", inf}, {"b", -inf}, {"c", std::numeric_limits<double>::quiet_NaN()}}),
            "a: .inf\nb: -.inf\nc: .nan\n");
}

TEST(YamlText, QuotesWhatWouldBeReadAsSomethingElse) {
  for (const char* const text :
       {"", "true", "Off", "12", "1.5", "1.0e-5", "0x1F", "~", "2024-01-02", "- a", "a: b", "a #b",
        "#a", "[1]", " a", "a ", "*a", "1:30"}) {
    EXPECT_EQ(yaml_text({{"k", text}}), "k: '" + std::string(text) + "'\n");
  }
  for (const char* const text : {"x", "1e-5", "a:b", "-a", "it's", "a#b", "1.2.3", "a, [b]"}) {
    EXPECT_EQ(yaml_text({{"k", text}}), "k: " + std::string(text) + "\n");
  }
  EXPECT_EQ(yaml_text({{"k", "'a"}}), "k: '''a'\n");
  EXPECT_EQ(yaml_text({{"1", "a\n\tb\"\\"}}), "'1': \"a\\n\\tb\\\"\\\\\"\n");
  EXPECT_EQ(yaml_text({{"k", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\xA4\x97\xFF"}}),
            "k: \"\\xE9\\u20AC\\U0001F917\\xFF\"\n");
}

TEST(YamlText, BreaksLongLines) {
  const std::string word(45, 'w');
  EXPECT_EQ(yaml_text({{"k", word + " " + word + " x y"}}),
            "k: " + word + " " + word + "\n  x y\n");
  EXPECT_EQ(yaml_text({{"k", std::string(300, 'x')}}), "k: " + std::string(300, 'x') + "\n");
}

TEST(YamlText, WritesTensorsAsTheirElements) {
  EXPECT_EQ(
      yaml_text({{"a", TensorValue{.sizes = {2, 2}, .dtype = "int64", .values = {1, 2, 3, 4}}},
                 {"b", TensorValue{.dtype = "float32", .values = {2}}},
                 {"c", TensorValue{.sizes = {0}, .dtype = "float32"}}}),
      "a:\n- - 1\n  - 2\n- - 3\n  - 4\nb: 2.0\nc: []\n");
}

// Every byte differs from its neighbours, and alpha is never all or nothing alone.
TrackerImage pattern(int64_t height, int64_t width, int64_t channels) {
  TrackerImage image{.height = height, .width = width, .channels = channels};
  for (int64_t i = 0; i < height * width * channels; ++i) {
    image.pixels.push_back(static_cast<uint8_t>(i * 37 + 11));
  }
  return image;
}

TEST(EncodePng, KeepsEveryByteOfEveryKind) {
  for (int64_t channels = 1; channels <= 4; ++channels) {
    for (const auto& [height, width] : {std::pair{1, 1}, {1, 7}, {5, 1}, {33, 64}}) {
      const TrackerImage image = pattern(height, width, channels);
      const std::string bytes = encode_png(image);
      EXPECT_THAT(bytes, StartsWith("\x89PNG\r\n\x1a\n"));
      EXPECT_EQ(decode_png(bytes), image) << height << " x " << width << " x " << channels;
    }
  }
}

TEST(EncodePng, RefusesWhatIsNoImage) {
  const auto encoding = [](TrackerImage image) { return [image] { encode_png(image); }; };
  EXPECT_THAT(encoding({}), ThrowsMessage<std::invalid_argument>(HasSubstr("1 to 4 channels")));
  EXPECT_THAT(encoding(pattern(2, 2, 5)),
              ThrowsMessage<std::invalid_argument>(HasSubstr("1 to 4 channels")));
  EXPECT_THAT(encoding(pattern(0, 2, 3)),
              ThrowsMessage<std::invalid_argument>(HasSubstr("has no pixels")));
  EXPECT_THAT(encoding({.height = -1, .width = 4, .channels = 1}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("has no pixels")));
  EXPECT_THAT(encoding({.height = INT64_MAX, .width = INT64_MAX, .channels = 4}),
              ThrowsMessage<std::invalid_argument>(HasSubstr("is too large")));
  TrackerImage cut = pattern(3, 4, 3);
  cut.pixels.pop_back();
  EXPECT_THAT(encoding(cut), ThrowsMessage<std::invalid_argument>(
                                 "an image of 3 x 4 pixels with 3 channels cannot have 35 bytes"));
}

TEST(EncodePng, SaysWhatLibpngRefuses) {
  const TrackerImage image = pattern(1, 1'000'001, 1);
  EXPECT_THAT([&] { encode_png(image); },
              ThrowsMessage<std::runtime_error>(HasSubstr("1 x 1000001 pixels: ")));
}

TEST(CsvTextTest, QuotesWhatNeedsIt) {
  EXPECT_EQ(csv_row({"a", "b c", ""}), "a,b c,\r\n");
  EXPECT_EQ(csv_row({"a,b", "say \"x\"", "two\nlines", "\r"}),
            "\"a,b\",\"say \"\"x\"\"\",\"two\nlines\",\"\r\"\r\n");
  EXPECT_EQ(csv_row({"a\tb", "c,d"}, '\t', "\n"), "\"a\tb\"\tc,d\n");
  EXPECT_EQ(csv_row({""}), "\"\"\r\n");
}

TEST(CsvTextTest, ReadsBackWhatItWrote) {
  const std::vector<std::string> fields{"", "a", ",", "\"", "\"\"", "x\r\ny", " ", "\xc3\xa9"};
  const std::string row = csv_row(fields);
  EXPECT_EQ(csv_row_size(row + "next"), row.size());
  EXPECT_EQ(csv_fields(row), fields);
  EXPECT_EQ(csv_fields(csv_row(fields, '\t', "\n"), '\t'), fields);
}

TEST(CsvTextTest, TellsRecordsThatItDidNotWrite) {
  const auto has_whole_quotes = [](std::string_view row, char separator = ',') {
    bool is_sound = false;
    csv_fields(row, separator, &is_sound);
    return is_sound;
  };
  for (const char* const sound : {"", "a,b", "\"a,b\",c\r\n", "\"say \"\"x\"\"\"", "\"\",\"\""}) {
    EXPECT_TRUE(has_whole_quotes(sound)) << sound;
  }
  for (const char* const torn : {"a\"b", "a,b\"", "\"a\"b,c", "\"a,b", "\"a\"\",b"}) {
    EXPECT_FALSE(has_whole_quotes(torn)) << torn;
  }
  EXPECT_TRUE(has_whole_quotes("\"a\"\tb", '\t'));
  EXPECT_FALSE(has_whole_quotes("\"a\"\tb"));
}

TEST(CsvTextTest, ARecordWithoutItsEnd) {
  EXPECT_EQ(csv_row_size("a,b"), 0u);
  EXPECT_EQ(csv_row_size("a,\"b\n"), 0u);
  EXPECT_EQ(csv_row_size("\n"), 1u);
  EXPECT_THAT(csv_fields("a,b"), ElementsAre("a", "b"));
  EXPECT_THAT(csv_fields("\n"), ElementsAre(""));
}

}  // namespace
}  // namespace accelerate::trackers
