#include "accelerate/files/formats/weight_files.h"

#include <cstdint>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::vector<size_t>> shards_of(const std::vector<int64_t>& sizes, int64_t limit) {
  std::vector<std::vector<size_t>> shards;
  for (const ShardPlan::Shard& shard : plan_shards(sizes, limit).shards) {
    shards.push_back(shard.tensors);
  }
  return shards;
}

TEST(ParseShardSize, ReadsWhatPythonReads) {
  const std::pair<const char*, int64_t> kSizes[] = {
      {"10GB", 10'000'000'000}, {" 5MB ", 5'000'000},       {"1kb", 1000},     {"0.4KB", 400},
      {"-1KB", -1000},          {"1e3 Kb", 1'000'000},      {"1_0KB", 10'000}, {".0015KB", 1},
      {"-.0015KB", -1},         {"2TB", 2'000'000'000'000}, {"0GB", 0},        {"+1.KB", 1000},
  };
  for (const auto& [text, bytes] : kSizes) {
    const absl::StatusOr<int64_t> parsed = parse_shard_size(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status();
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(ParseShardSize, RefusesEverythingElse) {
  for (const char* text : {"", " ", "B", "400", "5XB", "1MiB", "MB", "1__0KB", "_1KB", "1_KB",
                           "0x1KB", "infKB", "nanKB", "1e30TB", "1 0KB", "one GB"}) {
    const absl::StatusOr<int64_t> parsed = parse_shard_size(text);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(parsed.status().message(), "") << text;
  }
}

TEST(PlanShards, FillsInOrder) {
  EXPECT_THAT(shards_of({6, 6, 2, 6, 2, 2}, 10),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2), ElementsAre(3, 4, 5)));
  EXPECT_THAT(shards_of({4, 4, 2}, 10), ElementsAre(ElementsAre(0, 1, 2)));
}

TEST(PlanShards, PutsALargeTensorBeforeTheOpenShard) {
  EXPECT_THAT(shards_of({4, 11, 4, 12, 4}, 10),
              ElementsAre(ElementsAre(1), ElementsAre(3), ElementsAre(0, 2), ElementsAre(4)));
}

TEST(PlanShards, TakesAnyLimit) {
  EXPECT_THAT(shards_of({0, 1}, -5), ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(shards_of({0, 0, 1}, 0), ElementsAre(ElementsAre(2), ElementsAre(0, 1)));
  EXPECT_THAT(shards_of({INT64_MAX / 2, INT64_MAX / 2 - 5, 5}, INT64_MAX - 6),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
}

TEST(PlanShards, HasAFileForNothing) {
  const ShardPlan plan = plan_shards({}, 10);
  ASSERT_EQ(plan.shards.size(), 1);
  EXPECT_EQ(plan.shards[0].file, "model.safetensors");
  EXPECT_FALSE(plan.is_sharded());
}

TEST(PlanShards, NamesFiles) {
  const ShardPlan plan = plan_shards({8, 8, 2}, 10);
  EXPECT_THAT(plan.files(),
              ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                          "model-00002-of-00002.safetensors"));
  EXPECT_EQ(plan.total_bytes, 18);
}

TEST(IsShardFileName, KnowsItsOwnOnly) {
  EXPECT_TRUE(is_shard_file_name("model-00001-of-00009.safetensors"));
  for (const char* name :
       {"model-1-of-9.safetensors", "model-00001-of-00009.bin",
        "model_2-00001-of-00009.safetensors", "model-00001-of-00009.safetensors.tmp",
        "my-model-00001-of-00009.safetensors", "model-00001-of-00009",
        "model-0000a-of-00009.safetensors", "model.safetensors"}) {
    EXPECT_FALSE(is_shard_file_name(name)) << name;
  }
}

}  // namespace
}  // namespace accelerate
