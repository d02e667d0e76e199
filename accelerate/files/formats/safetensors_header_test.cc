#include "accelerate/files/formats/safetensors_header.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::string length_bytes(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xFF);
  return bytes;
}

std::string file_of(const std::string& json, size_t data_bytes) {
  return length_bytes(json.size()) + json + std::string(data_bytes, '\0');
}

absl::StatusOr<SafetensorsHeader> parse(const std::string& file) {
  // On the heap and no longer than it says, so that sanitizers see reads beyond it.
  const std::vector<char> bytes(file.begin(), file.end());
  return parse_safetensors_header(absl::string_view(bytes.data(), bytes.size()),
                                  static_cast<int64_t>(bytes.size()));
}

std::string error_of(const std::string& json, size_t data_bytes = 8) {
  const absl::StatusOr<SafetensorsHeader> header = parse(file_of(json, data_bytes));
  EXPECT_EQ(header.status().code(), absl::StatusCode::kDataLoss) << json;
  return std::string(header.status().message());
}

// A header of one tensor, with these values.
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return absl::StrCat(R"({"x":{"dtype":)", dtype, R"(,"shape":)", shape, R"(,"data_offsets":)",
                      offsets, "}}");
}

TEST(SafetensorsHeader, IsRead) {
  const std::string json =
      R"({"__metadata__":{"format":"pt","":"\u00e9"},"b":{"dtype":"F32","shape":[2],)"
      R"("data_offsets":[8,16]},"a":{"data_offsets":[0,8],"shape":[],"dtype":"I64"}}  )";
  const absl::StatusOr<SafetensorsHeader> header = parse(file_of(json, 16));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->data_offset, 8 + static_cast<int64_t>(json.size()));
  EXPECT_THAT(*header->metadata, ElementsAre(Pair("", "é"), Pair("format", "pt")));
  ASSERT_EQ(header->tensors.size(), 2);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[0].dtype, "I64");
  EXPECT_THAT(header->tensors[0].shape, ElementsAre());
  EXPECT_EQ(header->tensors[1].name, "b");
  EXPECT_THAT(header->tensors[1].shape, ElementsAre(2));
  EXPECT_EQ(header->tensors[1].begin, 8);
  EXPECT_EQ(header->tensors[1].end, 16);
}

TEST(SafetensorsHeader, IsReadAsOtherWritersHaveIt) {
  EXPECT_TRUE(parse(file_of("{}", 0)).ok());
  EXPECT_FALSE(parse(file_of("{}", 0))->metadata.has_value());
  EXPECT_FALSE(parse(file_of(R"({"__metadata__":null})", 0))->metadata.has_value());
  EXPECT_TRUE(parse(file_of(R"({"__metadata__":{}})", 0))->metadata->empty());
  // White space of any kind around it, fields of their own, empty tensors anywhere.
  EXPECT_TRUE(parse(file_of(" \n" + one("\"F32\"", "[2]", "[0,8]") + "\n\t ", 8)).ok());
  EXPECT_TRUE(parse(file_of(R"({"x":{"note":{"shape":[-1.5,null],"a":{"a":[[true]]}},"dtype":"U8",)"
                            R"("shape":[8],"more":"x","data_offsets":[0,8]}})",
                            8))
                  .ok());
  EXPECT_TRUE(parse(file_of(R"({"a":{"dtype":"F64","shape":[1,0],"data_offsets":[8,8]},)"
                            R"("b":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                            R"("c":{"dtype":"F64","shape":[0],"data_offsets":[0,0]}})",
                            8))
                  .ok());
}

TEST(SafetensorsHeader, OfEveryLengthButTheRightOneIsRefused) {
  const std::string file = file_of(one("\"F32\"", "[2]", "[0,8]"), 8);
  for (size_t length = 0; length < file.size(); ++length) {
    EXPECT_EQ(parse(file.substr(0, length)).status().code(), absl::StatusCode::kDataLoss) << length;
  }
  EXPECT_TRUE(parse(file).ok());
  EXPECT_THAT(parse(file + "x").status().message(), HasSubstr("1 bytes after the last tensor"));
  EXPECT_THAT(parse(file.substr(0, 5)).status().message(), HasSubstr("5 bytes only"));
}

TEST(SafetensorsHeader, ThatIsTooLongIsNotEvenLookedAt) {
  for (const uint64_t length : {uint64_t{100'000'001}, UINT64_MAX, uint64_t{1} << 63}) {
    const std::string start = length_bytes(length) + "{}";
    EXPECT_THAT(parse_safetensors_header(start, INT64_MAX).status().message(),
                HasSubstr("its header is too long"));
  }
  EXPECT_THAT(parse(length_bytes(3) + "{}").status().message(), HasSubstr("cut off"));
}

TEST(SafetensorsHeader, ThatIsNotJsonIsRefused) {
  const std::string good = one("\"F32\"", "[2]", "[0,8]");
  for (const std::string& json :
       {std::string(), std::string(" "), std::string("{oops"), std::string("[]"), std::string("1"),
        std::string("null"), good + "}", good + "x", good + std::string(1, '\0'),
        "\xEF\xBB\xBF" + good, good.substr(0, good.size() - 1), "//\n" + good,
        std::string(R"({"x":)"), std::string("{\"\xFF\":1}"), std::string("{\"\xC0\x80\":1}"),
        std::string("{\"\xED\xA0\x80\":1}"), std::string(R"({"\ud800":1})"),
        std::string("{\"a\nb\":{}}"), std::string(R"({"__metadata__":{"a":"b",}})")}) {
    EXPECT_THAT(error_of(json), HasSubstr("its header is")) << json;
  }
  const std::string deep = R"({"x":{"note":)" + std::string(50'000'000, '[');
  EXPECT_THAT(error_of(deep), HasSubstr("nested too deeply"));
  EXPECT_THAT(error_of(R"({"x":{"shape":)" + std::string(1000, '[')), HasSubstr("'x', 'shape'"));
}

TEST(SafetensorsHeader, WithNamesThatComeTwiceIsRefused) {
  const std::string x = R"("x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_THAT(error_of(absl::StrCat("{", x, ",", x, "}")), HasSubstr("'x' comes twice"));
  EXPECT_THAT(error_of(absl::StrCat("{", x, R"(,"\u0078":null})")), HasSubstr("'x' comes twice"));
  EXPECT_THAT(error_of(R"({"__metadata__":{},"__metadata__":{}})"), HasSubstr("comes twice"));
  EXPECT_THAT(error_of(R"({"__metadata__":{"a":"1","a":"1"}})"), HasSubstr("'a' comes twice"));
  EXPECT_THAT(error_of(R"({"x":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})"),
              HasSubstr("'x', 'dtype': 'dtype' comes twice"));
  EXPECT_THAT(error_of(R"({"x":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}})"),
              HasSubstr("comes twice"));
}

TEST(SafetensorsHeader, WithValuesOfOtherTypesIsRefused) {
  for (const char* value : {"1", "-1", "1.5", "\"a\"", "[]", "true", "null"}) {
    EXPECT_THAT(error_of(absl::StrCat(R"({"x":)", value, "}")), HasSubstr("'x'")) << value;
  }
  for (const char* value : {"1", "null", "[]", "{}", "false"}) {
    EXPECT_THAT(error_of(absl::StrCat(R"({"__metadata__":{"a":)", value, "}}")),
                HasSubstr("'__metadata__', 'a'"))
        << value;
  }
  EXPECT_THAT(error_of(R"({"__metadata__":[]})"), HasSubstr("'__metadata__'"));
  for (const char* dtype : {"1", "null", "[]", "{}", "\"\"", "\"f32\"", "\"F33\""}) {
    EXPECT_THAT(error_of(one(dtype, "[2]", "[0,8]")), HasSubstr("'x', 'dtype'")) << dtype;
  }
  for (const char* shape :
       {"2", "null", "{}", "\"2\"", "[\"2\"]", "[-2]", "[2.0]", "[2e0]", "[-0]", "[null]", "[[2]]",
        "[{}]", "[true]", "[9223372036854775808]", "[18446744073709551616]", "[1e999]"}) {
    EXPECT_THAT(error_of(one("\"F32\"", shape, "[0,8]")), HasSubstr("its header is wrong"))
        << shape;
  }
  for (const char* offsets : {"8", "{}", "[]", "[0]", "[0,8,8]", "[-1,7]", "[0,8.0]", "[0,[8]]",
                              "[0,18446744073709551615]", "[\"0\",8]"}) {
    EXPECT_THAT(error_of(one("\"F32\"", "[2]", offsets)), HasSubstr("'x', 'data_offsets'"))
        << offsets;
  }
  for (const char* fields :
       {R"("dtype":"F32","shape":[2])", R"("dtype":"F32","data_offsets":[0,8])",
        R"("shape":[2],"data_offsets":[0,8])", ""}) {
    EXPECT_THAT(error_of(absl::StrCat(R"({"x":{)", fields, "}}")), HasSubstr("'x': no "));
  }
}

TEST(SafetensorsHeader, HasTensorsOfDtypesThatWeLack) {
  struct Case {
    const char* dtype;
    int64_t bytes;  // of 8 elements
  };
  for (const auto& [dtype, bytes] : {Case{"F4", 4}, Case{"F6_E2M3", 6}, Case{"F6_E3M2", 6},
                                     Case{"F8_E8M0", 8}, Case{"C128", 128}}) {
    const std::string text = absl::StrCat("\"", dtype, "\"");
    const auto header = parse(file_of(one(text, "[2,4]", absl::StrCat("[0,", bytes, "]")), bytes));
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->tensors[0].dtype, dtype);
    EXPECT_EQ(safetensors_dtype_size(dtype), 0);
    EXPECT_THAT(error_of(one(text, "[2,4]", "[0,3]")), HasSubstr(absl::StrCat(bytes, " bytes")));
    EXPECT_TRUE(parse(file_of(one(text, "[3,0]", "[0,0]"), 0)).ok());
  }
  EXPECT_THAT(error_of(one("\"F4\"", "[3]", "[0,2]")), HasSubstr("not a whole number of bytes"));
  EXPECT_THAT(error_of(one("\"F9\"", "[3]", "[0,3]")), HasSubstr("'F9' is not a dtype"));
}

TEST(SafetensorsHeader, WhoseTensorsDoNotFillTheDataIsRefused) {
  const auto two = [](const std::string& a, const std::string& b) {
    return absl::StrCat(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)", a,
                        R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)", b, "}}");
  };
  EXPECT_TRUE(parse(file_of(two("[4,8]", "[0,4]"), 8)).ok());
  EXPECT_THAT(error_of(two("[0,4]", "[0,4]")), HasSubstr("'b', at bytes 0 to 4 of the data, "
                                                         "overlaps"));
  EXPECT_THAT(error_of(two("[0,4]", "[3,7]")), HasSubstr("overlaps"));
  EXPECT_THAT(error_of(two("[0,4]", "[5,9]"), 9), HasSubstr("leaves a hole after byte 4"));
  EXPECT_THAT(error_of(two("[1,5]", "[5,9]"), 9), HasSubstr("leaves a hole after byte 0"));
  EXPECT_THAT(error_of(two("[0,4]", "[4,8]"), 7), HasSubstr("is cut off: there are 7"));
  EXPECT_THAT(error_of(two("[0,4]", "[4,8]"), 9), HasSubstr("1 bytes after"));
  EXPECT_THAT(error_of(two("[0,4]", "[4,9]"), 9), HasSubstr("should have 4 bytes"));
  EXPECT_THAT(error_of(two("[4,0]", "[0,4]")), HasSubstr("'a'"));
  EXPECT_THAT(error_of("{}", 8), HasSubstr("8 bytes after"));
}

TEST(SafetensorsHeader, WhoseShapesOverflowIsRefused) {
  for (const char* shape :
       {"[4611686018427387904,8]", "[9223372036854775807]", "[4294967296,4294967296]",
        "[0,4611686018427387904,8]", "[4611686018427387904,8,0]", "[2305843009213693952]"}) {
    EXPECT_THAT(error_of(one("\"F32\"", shape, "[0,0]"), 0), HasSubstr("overflows")) << shape;
  }
  EXPECT_THAT(error_of(one("\"U8\"", "[9223372036854775807]", "[0,9223372036854775807]")),
              HasSubstr("is cut off"));
  EXPECT_TRUE(parse(file_of(one("\"F32\"", "[4611686018427,0]", "[0,0]"), 0)).ok());
}

TEST(SafetensorsHeader, ErrorsOfHugeNamesAreShort) {
  const std::string name(1'000'000, 'n');
  EXPECT_LT(error_of(absl::StrCat("{\"", name, "\":1}")).size(), 500);
}

TEST(SafetensorsHeader, IsLaidOutAsTheReferenceWriterDoes) {
  SafetensorsHeader header;
  header.metadata = SafetensorsMetadata{{"format", "pt"}};
  for (const auto& [name, dtype] :
       std::vector<std::pair<std::string, std::string>>{{"t", "BOOL"},
                                                        {"é\"q\\\n\x01\x7f/", "F32"},
                                                        {"b", "F32"},
                                                        {"h", "BF16"},
                                                        {"A", "F32"},
                                                        {"f", "F8_E4M3"},
                                                        {"i", "I64"},
                                                        {"e", "F8_E5M2"},
                                                        {"d", "F64"},
                                                        {"z", "C64"},
                                                        {"n", "F8_E5M2FNUZ"},
                                                        {"m", "F8_E4M3FNUZ"},
                                                        {"u", "U64"}}) {
    header.tensors.push_back({.name = name, .dtype = dtype, .shape = {1}});
  }
  const absl::StatusOr<std::string> start = lay_out_safetensors(header);
  ASSERT_TRUE(start.ok()) << start.status();
  const auto text = [](const std::string& name, const std::string& dtype, int begin, int end) {
    return absl::StrCat("\"", name, R"(":{"dtype":")", dtype, R"(","shape":[1],"data_offsets":[)",
                        begin, ",", end, "]}");
  };
  const std::string json =
      absl::StrCat(R"({"__metadata__":{"format":"pt"},)", text("u", "U64", 0, 8), ",",
                   text("i", "I64", 8, 16), ",", text("d", "F64", 16, 24), ",",
                   text("z", "C64", 24, 32), ",", text("A", "F32", 32, 36), ",");
  EXPECT_EQ(start->substr(8, json.size()), json);
  const std::string rest =
      absl::StrCat(text("b", "F32", 36, 40), ",",
                   text(R"(é\"q\\\n\u0001)"
                        "\x7f/",
                        "F32", 40, 44),
                   ",", text("h", "BF16", 44, 46), ",", text("n", "F8_E5M2FNUZ", 46, 47), ",",
                   text("m", "F8_E4M3FNUZ", 47, 48), ",", text("f", "F8_E4M3", 48, 49), ",",
                   text("e", "F8_E5M2", 49, 50), ",", text("t", "BOOL", 50, 51), "}");
  EXPECT_EQ(start->substr(8 + json.size(), rest.size()), rest);
  EXPECT_EQ(start->find_first_not_of(' ', 8 + json.size() + rest.size()), std::string::npos);
  EXPECT_EQ(start->size() % 8, 0);
  EXPECT_EQ(header.data_offset, static_cast<int64_t>(start->size()));
  EXPECT_EQ(start->substr(0, 8), length_bytes(start->size() - 8));

  const absl::StatusOr<SafetensorsHeader> again = parse(*start + std::string(51, '\0'));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->metadata, header.metadata);
  EXPECT_EQ(again->tensors.size(), header.tensors.size());
}

TEST(SafetensorsHeader, IsNotLaidOutForWhatCannotBeWritten) {
  const auto error = [](std::vector<SafetensorsEntry> tensors,
                        std::optional<SafetensorsMetadata> metadata = std::nullopt) {
    SafetensorsHeader header{.tensors = std::move(tensors), .metadata = std::move(metadata)};
    const absl::Status status = lay_out_safetensors(header).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error({{.name = "x", .dtype = "U8"}, {.name = "x", .dtype = "F32"}}),
              HasSubstr("'x' comes twice"));
  EXPECT_THAT(error({{.name = "__metadata__", .dtype = "U8"}}), HasSubstr("__metadata__"));
  EXPECT_THAT(error({{.name = "x", .dtype = "C128"}}), HasSubstr("'C128' is not a dtype"));
  EXPECT_THAT(error({{.name = "\xFF", .dtype = "U8"}}), HasSubstr("not UTF-8"));
  EXPECT_THAT(error({}, SafetensorsMetadata{{"a", "\xFF"}}), HasSubstr("not UTF-8"));
  EXPECT_THAT(error({{.name = "x", .dtype = "U8", .shape = {-1}}}), HasSubstr("'x'"));
  EXPECT_THAT(error({{.name = "x", .dtype = "U8", .shape = {INT64_MAX, 2}}}), HasSubstr("'x'"));
  EXPECT_THAT(error({{.name = "x", .dtype = "U8", .shape = {INT64_MAX}},
                     {.name = "y", .dtype = "U8", .shape = {1}}}),
              HasSubstr("'y'"));
  EXPECT_THAT(error({}, SafetensorsMetadata{{"a", std::string(100'000'000, ' ')}}),
              HasSubstr("too long"));
}

}  // namespace
}  // namespace accelerate
