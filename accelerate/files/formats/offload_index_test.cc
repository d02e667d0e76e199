#include "accelerate/files/formats/offload_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/platform/host_files.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::string problem_of(absl::string_view text) {
  const auto index = parse_offload_index(text);
  return index.ok() ? "none" : std::string(index.status().message());
}

TEST(OffloadIndex, IsWrittenAsPythonDoes) {
  const OffloadIndex index = {{"b.weight", {.dtype = "float32", .shape = {2, 3}}},
                              {"a", {.dtype = "bfloat16"}},
                              {"\u00e9", {.dtype = "bool", .shape = {0}}}};
  const std::string text = *offload_index_text(index);
  EXPECT_EQ(text,
            "{\n  \"b.weight\": {\n    \"dtype\": \"float32\",\n    \"shape\": [\n      2,\n"
            "      3\n    ]\n  },\n  \"a\": {\n    \"dtype\": \"bfloat16\",\n    \"shape\": []\n"
            "  },\n  \"\\u00e9\": {\n    \"dtype\": \"bool\",\n    \"shape\": [\n      0\n    ]\n"
            "  }\n}");
  EXPECT_EQ(*parse_offload_index(text), index);
  EXPECT_THAT(offload_index_text({{"\xff", {.dtype = "bool"}}}).status().message(),
              HasSubstr("UTF-8"));
}

TEST(OffloadIndex, ReadsEntriesOfSafetensorsFiles) {
  const auto index = parse_offload_index(
      R"({"w": {"safetensors_file": "sub/m.safetensors", "weight_name": "x", "dtype": "float16"},
          "v": {"safetensors_file": "m.safetensors"}})");
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_THAT(*index, ElementsAre(Pair("w", OffloadedTensor{.dtype = "float16",
                                                            .safetensors_file = "sub/m.safetensors",
                                                            .weight_name = "x"}),
                                  Pair("v", OffloadedTensor{.safetensors_file = "m.safetensors"})));
}

TEST(OffloadIndex, ReadsEntriesOfFilesOfTheirOwn) {
  const auto index = parse_offload_index(
      R"({"w": {"dtype": "bool", "shape": [], "weight_name": "x", "safetensors_file": null}})");
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_THAT(*index, ElementsAre(Pair("w", OffloadedTensor{.dtype = "bool"})))
      << "a name is for files with several tensors";
}

// NumPy maps no empty file, so that one without elements has a byte.
TEST(OffloadIndex, KnowsHowLongFilesAre) {
  EXPECT_TRUE(is_offloaded_file_size(12, 12));
  EXPECT_FALSE(is_offloaded_file_size(13, 12));
  EXPECT_FALSE(is_offloaded_file_size(11, 12));
  EXPECT_TRUE(is_offloaded_file_size(0, 0));
  EXPECT_TRUE(is_offloaded_file_size(1, 0));
  EXPECT_FALSE(is_offloaded_file_size(2, 0));
  EXPECT_FALSE(is_offloaded_file_size(1, 2));
}

TEST(OffloadIndex, RefusesWhatLeavesTheFolder) {
  for (const char* name : {"../w", "a/b", "a\\\\b", "", "a\\u0000b"}) {
    EXPECT_THAT(problem_of(std::string("{\"") + name + R"(": {"dtype": "bool", "shape": []}})"),
                HasSubstr("cannot have this name"))
        << name;
  }
  for (const char* path : {"/etc/m.safetensors", "../m", "a/../../m", "a\\\\..\\\\m", ".", "a/"}) {
    EXPECT_THAT(problem_of(std::string(R"({"w": {"safetensors_file": ")") + path + "\"}}"),
                HasSubstr("not a file in the index's folder"))
        << path;
  }
}

TEST(OffloadIndex, RefusesWrongEntries) {
  const auto entry = [](const std::string& text) { return problem_of("{\"w\": " + text + "}"); };
  EXPECT_EQ(entry(R"({"dtype": "float32", "shape": [2]})"), "none");
  EXPECT_THAT(entry(R"({"dtype": "float32"})"), HasSubstr("expected a value at \"/w/shape\""));
  EXPECT_THAT(entry(R"({"shape": [2]})"), HasSubstr("unknown dtype \"\""));
  EXPECT_THAT(entry(R"({"dtype": "float8_e8m0fnu", "shape": [2]})"), HasSubstr("float8_e8m0fnu"));
  EXPECT_THAT(entry(R"({"safetensors_file": "m.safetensors", "dtype": "float9"})"),
              HasSubstr("unknown dtype \"float9\""));
  EXPECT_THAT(entry(R"({"dtype": 3, "shape": [2]})"),
              HasSubstr("expected a text at \"/w/dtype\", found 3"));
  EXPECT_THAT(entry(R"({"dtype": "bool", "shape": [-1]})"), HasSubstr("negative"));
  EXPECT_THAT(entry(R"({"dtype": "bool", "shape": [1.5]})"), HasSubstr("64-bit integer"));
  EXPECT_THAT(entry(R"({"dtype": "bool", "shape": 2})"), HasSubstr("list"));
  EXPECT_THAT(entry(R"({"dtype": "float64", "shape": [4294967296, 4294967296]})"),
              HasSubstr("overflows"));
  EXPECT_THAT(entry(R"({"dtype": "float64", "shape": [4294967296, 0, 4294967296]})"),
              HasSubstr("overflows"));
  EXPECT_THAT(entry(R"({"dtype": "bool", "shape": [18446744073709551615]})"),
              HasSubstr("64-bit integer"));
  EXPECT_THAT(entry("[]"), HasSubstr("expected an object at \"/w\""));
  EXPECT_THAT(problem_of("[]"), HasSubstr("expected an object, found []"));
  EXPECT_THAT(problem_of("not json"), HasSubstr("not JSON"));
  EXPECT_THAT(problem_of(R"({"w": {}, "w": {}})"), HasSubstr("\"w\" twice"));
}

TEST(OffloadIndex, CountsBytes) {
  EXPECT_EQ(*offloaded_bytes({.dtype = "bfloat16", .shape = {3, 2}}), 12);
  EXPECT_EQ(*offloaded_bytes({.dtype = "complex128"}), 16);
  EXPECT_EQ(*offloaded_bytes({.dtype = "int64", .shape = {5, 0}}), 0);
}

TEST(OffloadIndex, MergesIntoAFolder) {
  HostFiles files;
  const std::string folder = ::testing::TempDir() + "/offload_index";
  ASSERT_TRUE(save_offload_index(files, {}, folder).ok());
  EXPECT_FALSE(*exists(files, folder));
  const OffloadedTensor before{.dtype = "bool", .shape = {2}};
  const OffloadedTensor after{.dtype = "int8", .shape = {4}};
  ASSERT_TRUE(save_offload_index(files, {{"a", before}, {"b", before}}, folder).ok());
  ASSERT_TRUE(
      save_offload_index(
          files, {{"c", {.safetensors_file = folder + "/m.safetensors"}}, {"a", after}}, folder)
          .ok());
  EXPECT_THAT(
      *read_offload_index(files, folder),
      ElementsAre(Pair("a", after), Pair("b", before),
                  Pair("c", OffloadedTensor{.safetensors_file = folder + "/m.safetensors"})));
  // What could not be read again is not written.
  EXPECT_THAT(
      save_offload_index(files, {{"d", {.safetensors_file = "/x.safetensors"}}}, folder).message(),
      HasSubstr("not a file in the index's folder"));
  EXPECT_THAT(save_offload_index(files, {{"d/e", before}}, folder).message(), HasSubstr("d/e"));
  // A folder whose name begins alike is another one, and a slash at the end is none of the name.
  EXPECT_THAT(
      save_offload_index(files, {{"d", {.safetensors_file = folder + "2/x.safetensors"}}}, folder)
          .message(),
      HasSubstr("not a file in the index's folder"));
  ASSERT_TRUE(save_offload_index(files, {{"e", {.safetensors_file = folder + "/e.safetensors"}}},
                                 folder + "/")
                  .ok());
  EXPECT_EQ(read_offload_index(files, folder)->back().second.safetensors_file,
            folder + "/e.safetensors");
  ASSERT_TRUE(write_file(files, folder + "/index.json", "not json").ok());
  EXPECT_THAT(save_offload_index(files, {{"a", after}}, folder).message(),
              HasSubstr("index.json: it is not JSON"));
  EXPECT_TRUE(remove_all(files, folder).ok());
}

}  // namespace
}  // namespace accelerate
