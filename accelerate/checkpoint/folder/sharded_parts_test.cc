#include "accelerate/checkpoint/folder/sharded_parts.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace accelerate::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Half of a vector on each rank along tp, in one stage of two.
PlacedPart part_of_stage(int stage, int rank) {
  return {.placement = {.name = "w", .shape = {4}, .cuts = {{.dim = 0}}, .stages = {stage}},
          .mesh = Mesh({.pp = 2, .tp = 2}),
          .rank = rank};
}

RankShardPlan plan_of(int rank, std::vector<int64_t> disks) {
  const ShardPlaces none(std::vector<std::shared_ptr<ModelState>>{});
  return {std::move(disks), rank, none};
}

std::vector<std::string> texts_of(const std::vector<TensorShard>& shards) {
  std::vector<std::string> texts;
  for (const TensorShard& shard : shards) {
    texts.push_back(absl::StrCat(shard.file, ": ", shard.key, box_text(shard.box)));
  }
  return texts;
}

TEST(RankShardPlan, HasTheRanksOfEachStage) {
  const RankShardPlan plan = plan_of(/*rank=*/2, std::vector<int64_t>(4));
  for (int i = 0; i < 2; ++i) {  // once more with what it knows by then
    EXPECT_THAT(texts_of(plan.listed("w", part_of_stage(0, 2))),
                ElementsAre("shard_00000.safetensors: w[0:2]", "shard_00001.safetensors: w[2:4]"));
    EXPECT_THAT(texts_of(plan.listed("w", part_of_stage(1, 2))),
                ElementsAre("shard_00002.safetensors: w[0:2]", "shard_00003.safetensors: w[2:4]"));
  }
  EXPECT_THAT(plan.own("w", part_of_stage(0, 2)), IsEmpty());
  EXPECT_THAT(plan.own("w", part_of_stage(1, 2)), SizeIs(1));
}

// Ranks 2 and 3 are on another disk, which has a copy of each part.
TEST(RankShardPlan, RefersToTheFilesOfItsDisk) {
  PlacedPart part = part_of_stage(0, 0);
  part.placement.stages = {};
  const std::vector<int64_t> disks = {0, 0, 2, 2};
  for (const int rank : {0, 2}) {
    part.rank = rank;
    const RankShardPlan plan = plan_of(rank, disks);
    EXPECT_THAT(texts_of(plan.listed("w", part)),
                ElementsAre(absl::StrCat("shard_0000", rank, ".safetensors: w[0:2]"),
                            absl::StrCat("shard_0000", rank + 1, ".safetensors: w[2:4]")));
    EXPECT_THAT(plan.own("w", part), SizeIs(1));
  }
}

// Ranks along pp have copies of each half: they divide its rows, unless their values may differ.
TEST(RankShardPlan, DividesRowsAmongCopiesUnlessTheyDiffer) {
  PlacedPart part = part_of_stage(0, 2);
  part.placement.stages = {};
  const RankShardPlan plan = plan_of(/*rank=*/2, std::vector<int64_t>(4));
  EXPECT_THAT(texts_of(plan.listed("w", part)),
              ElementsAre("shard_00000.safetensors: w[0:1]", "shard_00002.safetensors: w[1:2]",
                          "shard_00001.safetensors: w[2:3]", "shard_00003.safetensors: w[3:4]"));
  const std::vector<WrittenBox> own = plan.own("w", part);
  ASSERT_THAT(own, SizeIs(1));
  EXPECT_EQ(own[0].whole, (Box{.offsets = {1}, .lengths = {1}}));
  EXPECT_EQ(own[0].part, (Box{.offsets = {1}, .lengths = {1}}));
  part.copies_differ = true;
  EXPECT_THAT(texts_of(plan.listed("w", part)),
              ElementsAre("shard_00000.safetensors: w[0:2]", "shard_00001.safetensors: w[2:4]"));
  EXPECT_THAT(plan.own("w", part), IsEmpty());
}

}  // namespace
}  // namespace accelerate::internal
