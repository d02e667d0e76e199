#include "accelerate/data/batch_sampler_shard.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Batches = std::vector<std::vector<int64_t>>;

struct Mode {
  bool split = false;
  bool even = true;
  bool drop_last = false;
};

// What each rank gets of the samples 0, 1, …
std::vector<Batches> shards_of(int64_t samples, int64_t batch_size, int world_size,
                               const Mode& mode) {
  std::vector<Batches> shards;
  for (int rank = 0; rank < world_size; ++rank) {
    BatchSamplerShard shard(
        BatchSampler(std::make_shared<SequentialSampler>(samples), batch_size, mode.drop_last),
        {.rank = rank,
         .world_size = world_size,
         .split_batches = mode.split,
         .even_batches = mode.even});
    const IndexBatches batches = shard.batches(/*epoch=*/0);
    EXPECT_EQ(batches.size(), shard.size());
    Batches& all = shards.emplace_back();
    for (int64_t i = 0; i < batches.size(); ++i) {
      const at::Tensor batch = batches[i];
      const int64_t* data = batch.const_data_ptr<int64_t>();
      all.emplace_back(data, data + batch.numel());
    }
  }
  return shards;
}

struct Case {
  int64_t samples;
  int64_t batch_size;
  int world_size;
  Mode mode;
  std::vector<Batches> shards;
};

void expect_shards(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message()
                 << c.samples << " samples, batch size " << c.batch_size << ", world size "
                 << c.world_size << ", split " << c.mode.split << ", even " << c.mode.even
                 << ", drop_last " << c.mode.drop_last);
    EXPECT_EQ(shards_of(c.samples, c.batch_size, c.world_size, c.mode), c.shards);
  }
}

TEST(BatchSamplerShard, DealsWholeBatchesAndFillsTheLastRound) {
  expect_shards({
      {10, 2, 3, {}, {{{0, 1}, {6, 7}}, {{2, 3}, {8, 9}}, {{4, 5}, {0, 1}}}},
      {7, 2, 3, {}, {{{0, 1}, {6, 0}}, {{2, 3}, {1, 2}}, {{4, 5}, {3, 4}}}},
      {5, 2, 4, {}, {{{0, 1}}, {{2, 3}}, {{4, 0}}, {{1, 2}}}},
      {1, 2, 4, {}, {{{0, 0}}, {{0, 0}}, {{0, 0}}, {{0, 0}}}},
      {9, 5, 2, {}, {{{0, 1, 2, 3, 4}}, {{5, 6, 7, 8, 0}}}},
      {2, 3, 2, {}, {{{0, 1, 0}}, {{1, 0, 1}}}},
      {13, 2, 4, {}, {{{0, 1}, {8, 9}}, {{2, 3}, {10, 11}}, {{4, 5}, {12, 0}}, {{6, 7}, {1, 2}}}},
  });
}

TEST(BatchSamplerShard, DropsTheTailBatchWhenUneven) {
  expect_shards({
      {10, 2, 3, {.even = false}, {{{0, 1}, {6, 7}}, {{2, 3}, {8, 9}}, {{4, 5}}}},
      {9, 2, 3, {.even = false}, {{{0, 1}, {6, 7}}, {{2, 3}, {8}}, {{4, 5}}}},
      {1, 2, 3, {.even = false}, {{{0}}, {}, {}}},
  });
}

TEST(BatchSamplerShard, DropsAnIncompleteRoundWithDropLast) {
  expect_shards({
      {10, 2, 3, {.drop_last = true}, {{{0, 1}}, {{2, 3}}, {{4, 5}}}},
      {7, 2, 2, {.drop_last = true}, {{{0, 1}}, {{2, 3}}}},
      {3, 4, 2, {.split = true, .drop_last = true}, {{}, {}}},
  });
}

TEST(BatchSamplerShard, SplitsEveryBatch) {
  expect_shards({
      {11,
       4,
       4,
       {.split = true},
       {{{0}, {4}, {8}}, {{1}, {5}, {9}}, {{2}, {6}, {10}}, {{3}, {7}, {0}}}},
      {11,
       4,
       4,
       {.split = true, .even = false},
       {{{0}, {4}, {8}}, {{1}, {5}, {9}}, {{2}, {6}, {10}}, {{3}, {7}}}},
      {5, 4, 2, {.split = true}, {{{0, 1}, {4, 0}}, {{2, 3}, {1, 2}}}},
      {3, 4, 4, {.split = true}, {{{0}}, {{1}}, {{2}}, {{0}}}},
      {2, 4, 2, {.split = true}, {{{0, 1}}, {{0, 1}}}},
  });
}

TEST(BatchSamplerShard, HasNoBatchesWithoutSamples) {
  for (bool even : {false, true}) {
    EXPECT_THAT(shards_of(0, 2, 2, {.even = even}), ElementsAre(IsEmpty(), IsEmpty()));
  }
}

TEST(BatchSamplerShard, SharesOneOrderAmongRegularBatches) {
  BatchSamplerShard shard(BatchSampler(std::make_shared<SequentialSampler>(9), 2),
                          {.rank = 1, .world_size = 2});
  const IndexBatches batches = shard.batches(0);
  EXPECT_TRUE(batches[0].is_alias_of(batches[1]));
  EXPECT_FALSE(batches[0].is_alias_of(batches[2])) << "filled up, so it cannot be a view";
}

TEST(BatchSamplerShard, RefusesToSplitWhatIsNotDivisible) {
  try {
    shards_of(30, 3, 5, {.split = true});
    FAIL() << "no exception";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("batch size 3 is not divisible by the world size 5"));
  }
}

TEST(BatchSamplerShard, RefusesARankOutsideItsWorld) {
  const BatchSampler sampler(std::make_shared<SequentialSampler>(4), 2);
  EXPECT_THROW(BatchSamplerShard(sampler, {.rank = 2, .world_size = 2}), c10::ValueError);
  EXPECT_THROW(BatchSamplerShard(sampler, {.rank = 0, .world_size = 0}), c10::ValueError);
}

}  // namespace
}  // namespace accelerate
