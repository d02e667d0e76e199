#include "accelerate/files/formats/sharded_metadata.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace accelerate {
namespace {

using testing::HasSubstr;

TensorShard box(std::vector<int64_t> offsets, std::vector<int64_t> lengths) {
  return {.file = sharded_file_name(0), .key = "x", .box = {offsets, lengths}};
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
  EXPECT_THAT(problem({box({0, 0}, {4, 3})}),
              HasSubstr("hole: 48 of 64 bytes are there, and no box has [0:4, 3:4]"));
  EXPECT_THAT(problem({box({0, 0}, {2, 4}), box({2, 0}, {2, 1}), box({2, 2}, {2, 2})}),
              HasSubstr("no box has [2:4, 1:2]"));
  EXPECT_THAT(problem({box({0, 0}, {4, 4}), box({0, 0}, {4, 4})}),
              HasSubstr("overlap: [0:4, 0:4] and [0:4, 0:4]"));
  // As many bytes as the whole, but twice in the middle.
  EXPECT_THAT(problem({box({0, 0}, {3, 4}), box({2, 0}, {1, 4})}),
              HasSubstr("overlap: [0:3, 0:4] and [2:3, 0:4]"));
  EXPECT_THAT(problem({box({0, 0}, {4, 5})}), HasSubstr("beyond"));
  EXPECT_THAT(problem({box({1, 0}, {4, 4})}), HasSubstr("beyond"));
  EXPECT_THAT(problem({box({-1, 0}, {4, 4})}), HasSubstr("beyond"));
  EXPECT_THAT(problem({box({INT64_MAX, 0}, {4, 4})}), HasSubstr("beyond"));
  EXPECT_THAT(problem({box({0}, {4})}), HasSubstr("beyond"));
  EXPECT_EQ(problem_of({.dtype = "F32", .shape = {0, 4}}), "");
}

std::string text_of(const std::vector<TensorShard>& shards) {
  std::string text;
  for (const TensorShard& shard : shards) {
    text += shard.file + " " + std::to_string(shard.box.offsets[0]) + "+" +
            std::to_string(shard.box.lengths[0]) + "; ";
  }
  return text;
}

// 7 rows in 3 parts of 3, 3 and 1, the first one by two replicas.
ShardedMetadata by_rows() {
  return {.world_size = 4,
          .tensors = {{"x", {.dtype = "F32", .shape = {7, 2}, .by_rows = true}}},
          .writers = {{"a", "b"}, {"c"}, {"d"}},
          .values = R"({"lr": 0.1})"};
}

TEST(ShardedMetadata, FindsTheShardsOfTensorsThatAreDividedByRows) {
  const ShardedMetadata metadata = by_rows();
  EXPECT_EQ(text_of(shards_of(metadata, "x")), "a 0+2; b 2+1; c 3+3; d 6+1; ");
  EXPECT_EQ(text_of(shards_within(metadata, "x", row_box({7, 2}, 2, 2))), "b 2+1; c 3+3; ");
  EXPECT_EQ(text_of(shards_within(metadata, "x", row_box({7, 2}, 5, 2))), "c 3+3; d 6+1; ");
  EXPECT_EQ(text_of(shards_within(metadata, "x", row_box({7, 2}, 3, 0))), "");
  // Each way through the file of text gives the same.
  const std::string text = sharded_metadata_text(metadata);
  const absl::StatusOr<ShardedMetadata> again = parse_sharded_metadata(text);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(text_of(shards_of(*again, "x")), text_of(shards_of(metadata, "x")));
  EXPECT_EQ(again->values, metadata.values);
  EXPECT_EQ(sharded_metadata_text(*again), text);
}

TEST(ShardedMetadata, FindsTheShardsOfTensorsThatAreListed) {
  ShardedMetadata metadata{.world_size = 2};
  metadata.tensors["x"] = {
      .dtype = "F32", .shape = {4, 3}, .shards = {box({0, 0}, {2, 3}), box({2, 0}, {2, 3})}};
  TensorShard& second = metadata.tensors["x"].shards[1];
  second.file = sharded_file_name(1);
  second.key = "x of 1";
  const auto within = [&](int64_t first, int64_t count) {
    return text_of(shards_within(metadata, "x", row_box({4, 3}, first, count)));
  };
  const std::string a = "shard_00000.safetensors 0+2; ", b = "shard_00001.safetensors 2+2; ";
  EXPECT_EQ(within(1, 1), a) << "the first shard ends where the second one begins";
  EXPECT_EQ(within(2, 1), b);
  EXPECT_EQ(within(1, 2), a + b);
  EXPECT_EQ(within(3, 0), "");
  EXPECT_EQ(text_of(shards_of(metadata, "x")), a + b);
  const SafetensorsHeader of_second{
      .tensors = {{.name = "x of 1", .dtype = "F32", .shape = {2, 3}}}};
  EXPECT_TRUE(check_shard_file(metadata, sharded_file_name(1), of_second).ok());
  EXPECT_FALSE(check_shard_file(metadata, sharded_file_name(0), of_second).ok());
}

TEST(ShardedMetadata, PartsThatHaveNoRowsHaveNoShards) {
  ShardedMetadata metadata = by_rows();
  metadata.tensors["x"].shape = {1, 2};
  EXPECT_EQ(text_of(shards_of(metadata, "x")), "a 0+1; ");
  metadata.tensors["x"].shape = {3, 0};
  EXPECT_EQ(text_of(shards_of(metadata, "x")), "");
  // One row, of a tensor without dims.
  metadata.tensors["x"].shape = {};
  ASSERT_EQ(shards_of(metadata, "x").size(), 1);
  EXPECT_EQ(shards_of(metadata, "x")[0].file, "a");
  EXPECT_EQ(shards_of(metadata, "x")[0].box.lengths, std::vector<int64_t>());
}

TEST(ShardedMetadata, RefusesRowsThatNobodyWrites) {
  const auto problem_with = [](const auto& change) {
    ShardedMetadata metadata = by_rows();
    change(metadata);
    return std::string(check_sharded_metadata(metadata).message());
  };
  EXPECT_EQ(problem_with([](auto&) {}), "");
  EXPECT_THAT(problem_with([](auto& m) { m.writers.clear(); }), HasSubstr("no writers"));
  EXPECT_THAT(problem_with([](auto& m) { m.writers[1].clear(); }), HasSubstr("no writer"));
  EXPECT_THAT(problem_with([](auto& m) { m.writers[2] = {"a"}; }), HasSubstr("\"a\" comes twice"));
  EXPECT_THAT(problem_with([](auto& m) { m.writers[0][0] = "../a"; }), HasSubstr("plain"));
  EXPECT_THAT(problem_with([](auto& m) { m.tensors["x"].shape = {INT64_MAX}; }),
              HasSubstr("shape"));
  // The end of a part of so many rows has no number, though the bytes have one.
  const auto with_rows = [&](int64_t rows) {
    return problem_with([rows](auto& m) {
      m.tensors["x"].dtype = "U8";
      m.tensors["x"].shape = {rows};
    });
  };
  EXPECT_EQ(with_rows(int64_t{1} << 62), "");
  EXPECT_THAT(with_rows((int64_t{1} << 62) + 1), HasSubstr("have no possible shape"));
  EXPECT_THAT(problem_with([](auto& m) { m.tensors["x"].shards = {box({0, 0}, {7, 2})}; }),
              HasSubstr("are listed, and by rows as well"));
}

TEST(ShardedMetadata, ChecksWhatFilesHave) {
  const ShardedMetadata metadata = by_rows();
  const auto problem_of_file = [&](const std::string& file, std::vector<SafetensorsEntry> entries) {
    return std::string(check_shard_file(metadata, file, {.tensors = std::move(entries)}).message());
  };
  const SafetensorsEntry right{.name = "x", .dtype = "F32", .shape = {2, 2}};
  EXPECT_EQ(problem_of_file("a", {right}), "");
  EXPECT_THAT(problem_of_file("a", {}), HasSubstr("has no \"x\""));
  EXPECT_THAT(problem_of_file("b", {right}), HasSubstr("F32 [2, 2], not F32 [1, 2]"));
  EXPECT_THAT(problem_of_file("a", {{.name = "x", .dtype = "BF16", .shape = {2, 2}}}),
              HasSubstr("BF16 [2, 2], not F32 [2, 2]"));
  EXPECT_THAT(problem_of_file("a", {right, {.name = "y", .dtype = "F32"}}),
              HasSubstr("\"y\", which is not in the metadata"));
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
