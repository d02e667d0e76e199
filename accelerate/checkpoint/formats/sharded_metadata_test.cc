#include "accelerate/checkpoint/formats/sharded_metadata.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace accelerate {
namespace {

using testing::HasSubstr;

TensorShard box(std::vector<int64_t> offsets, std::vector<int64_t> lengths) {
  return {.file = sharded_file_name(0), .key = "x", .offsets = offsets, .lengths = lengths};
}

std::string problem_of(const ShardedTensor& tensor) {
  return std::string(check_sharded_metadata({.tensors = {{"x", tensor}}}).message());
}

TEST(ShardedMetadata, GoesToTextAndBack) {
  ShardedMetadata metadata{.world_size = 2, .root = "model"};
  metadata.tensors["x"] = {
      .dtype = "BF16", .shape = {4, 3}, .shards = {box({0, 0}, {2, 3}), box({2, 0}, {2, 3})}};
  metadata.tensors["scalar"] = {.dtype = "F32", .shape = {}, .shards = {box({}, {})}};
  const std::string text = sharded_metadata_text(metadata);
  const absl::StatusOr<ShardedMetadata> again = parse_sharded_metadata(text);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->root, "model");
  EXPECT_EQ(again->world_size, 2);
  EXPECT_EQ(sharded_metadata_text(*again), text);
}

TEST(ShardedMetadata, BoxesCoverTheirTensorExactly) {
  const std::vector<int64_t> shape = {4, 4};
  const auto problem = [&](std::vector<TensorShard> shards) {
    return problem_of({.dtype = "F32", .shape = shape, .shards = std::move(shards)});
  };
  EXPECT_EQ(problem({box({0, 0}, {4, 4})}), "");
  // A pinwheel around a 2x2 box.
  EXPECT_EQ(problem({box({0, 0}, {1, 3}), box({0, 3}, {3, 1}), box({3, 1}, {1, 3}),
                     box({1, 0}, {3, 1}), box({1, 1}, {2, 2})}),
            "");
  EXPECT_EQ(problem({box({0, 0}, {4, 4}), box({2, 0}, {0, 4})}), "");
  EXPECT_THAT(problem({}), HasSubstr("hole"));
  EXPECT_THAT(problem({box({0, 0}, {4, 3})}), HasSubstr("hole: 48 of 64"));
  EXPECT_THAT(problem({box({0, 0}, {4, 4}), box({0, 0}, {4, 4})}), HasSubstr("overlap"));
  // As many bytes as the whole, but twice in the middle.
  EXPECT_THAT(problem({box({0, 0}, {3, 4}), box({2, 0}, {1, 4})}), HasSubstr("overlap"));
  EXPECT_THAT(problem({box({0, 0}, {4, 5})}), HasSubstr("beyond"));
  EXPECT_THAT(problem({box({1, 0}, {4, 4})}), HasSubstr("beyond"));
  EXPECT_THAT(problem({box({-1, 0}, {4, 4})}), HasSubstr("beyond"));
  EXPECT_THAT(problem({box({INT64_MAX, 0}, {4, 4})}), HasSubstr("beyond"));
  EXPECT_THAT(problem({box({0}, {4})}), HasSubstr("beyond"));
  EXPECT_EQ(problem_of({.dtype = "F32", .shape = {0, 4}}), "");
}

TEST(ShardedMetadata, RefusesTensorsAndFilesThatCannotBe) {
  EXPECT_THAT(problem_of({.dtype = "F31", .shape = {}}), HasSubstr("F31"));
  EXPECT_THAT(problem_of({.dtype = "F32", .shape = {-1}}), HasSubstr("shape"));
  EXPECT_THAT(problem_of({.dtype = "F32", .shape = {INT64_MAX, 4}}), HasSubstr("shape"));
  ShardedTensor tensor{.dtype = "F32", .shape = {1}, .shards = {box({0}, {1})}};
  tensor.shards[0].file = "../shard_00000.safetensors";
  EXPECT_THAT(problem_of(tensor), HasSubstr("plain file name"));
}

TEST(ShardedMetadata, RefusesTextsOfOtherShape) {
  nlohmann::json good = {{"format", "accelerate-sharded"},
                         {"version", 1},
                         {"world_size", 1},
                         {"tensors", nlohmann::json::object()}};
  EXPECT_TRUE(parse_sharded_metadata(good.dump()).ok());
  for (const char* text : {"", "[]", "{}", "null", "7"}) {
    EXPECT_EQ(parse_sharded_metadata(text).status().code(), absl::StatusCode::kDataLoss) << text;
  }
  for (const auto& [key, value] : good.items()) {
    for (const nlohmann::json& other :
         {nlohmann::json(nullptr), nlohmann::json(7.5), nlohmann::json("x"), nlohmann::json(0)}) {
      nlohmann::json bad = good;
      bad[key] = other;
      EXPECT_FALSE(parse_sharded_metadata(bad.dump()).ok()) << bad;
    }
  }
  for (const char* tensor :
       {"1", "{}", R"({"dtype":"F32","shape":[1.5],"shards":[]})",
        R"({"dtype":"F32","shape":[18446744073709551615],"shards":[]})",
        R"({"dtype":"F32","shape":[],"shards":{}})", R"({"dtype":"F32","shape":[],"shards":[1]})",
        R"({"dtype":4,"shape":[],"shards":[]})"}) {
    nlohmann::json bad = good;
    bad["tensors"]["x"] = nlohmann::json::parse(tensor);
    EXPECT_FALSE(parse_sharded_metadata(bad.dump()).ok()) << tensor;
  }
}

}  // namespace
}  // namespace accelerate
