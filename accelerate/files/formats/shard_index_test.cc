#include "accelerate/files/formats/weight_files.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using testing::HasSubstr;

std::string problem_of(const std::string& text) {
  const absl::StatusOr<ShardIndex> index = parse_shard_index(text);
  EXPECT_FALSE(index.ok()) << text;
  EXPECT_EQ(index.status().code(), absl::StatusCode::kDataLoss);
  return std::string(index.status().message());
}

TEST(ShardIndex, IsWrittenAsOthersDo) {
  const ShardIndex index{.total_size = 12,
                         .weight_map = {{"b", "model-00001-of-00002.safetensors"},
                                        {"a\xC3\xA9\"", "model-00002-of-00002.safetensors"}}};
  const std::string text = shard_index_text(index);
  EXPECT_EQ(text,
            "{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n  \"weight_map\": {\n"
            "    \"a\\u00e9\\\"\": \"model-00002-of-00002.safetensors\",\n"
            "    \"b\": \"model-00001-of-00002.safetensors\"\n  }\n}\n");
  const absl::StatusOr<ShardIndex> again = parse_shard_index(text);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->total_size, index.total_size);
  EXPECT_EQ(again->weight_map, index.weight_map);
}

TEST(ShardIndex, IsAMapItselfWithoutAWeightMap) {
  const absl::StatusOr<ShardIndex> index =
      parse_shard_index(R"({"fc.weight": "a.safetensors", "fc.bias": "b.safetensors"})");
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->weight_map, (std::map<std::string, std::string>{{"fc.weight", "a.safetensors"},
                                                                   {"fc.bias", "b.safetensors"}}));
  EXPECT_EQ(index->total_size, 0);
  EXPECT_THAT(problem_of(R"({"w": "a", "metadata": {"total_size": 1}})"),
              HasSubstr("no file for \"metadata\""));
  EXPECT_THAT(problem_of(R"({"w": "../a"})"), HasSubstr("name of a file"));
  EXPECT_THAT(problem_of(R"({"weight_map": []})"), HasSubstr("no weight_map"));
}

TEST(ShardIndex, IsNotTrusted) {
  EXPECT_THAT(problem_of("{"), HasSubstr("JSON"));
  EXPECT_THAT(problem_of(""), HasSubstr("JSON"));
  EXPECT_THAT(problem_of("\xFF\xFE"), HasSubstr("JSON"));
  EXPECT_THAT(problem_of("[]"), HasSubstr("weight_map"));
  EXPECT_THAT(problem_of("{}"), HasSubstr("weight_map"));
  EXPECT_THAT(problem_of(R"({"weight_map": {"a": 1}})"), HasSubstr("\"a\""));
  EXPECT_THAT(problem_of(R"({"weight_map": {"a": "x", "a": "y"}})"), HasSubstr("twice"));
  EXPECT_THAT(problem_of(std::string(100000, '[')), HasSubstr("deep"));
  for (const char* file : {"../x", "/etc/passwd", "a/b", "..", ".", "", "a\\\\b", "a\\u0000b"}) {
    const std::string text = std::string(R"({"weight_map": {"a": ")") + file + "\"}}";
    EXPECT_THAT(problem_of(text), HasSubstr("name of a file")) << file;
  }
}

TEST(AsideName, GoesBothWays) {
  EXPECT_EQ(aside_name("model.safetensors"), "model.new.safetensors");
  EXPECT_EQ(name_of_aside("model.new.safetensors"), "model.safetensors");
  EXPECT_EQ(name_of_aside("model.safetensors"), "");
}

}  // namespace
}  // namespace accelerate
