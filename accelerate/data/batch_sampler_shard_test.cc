#include "accelerate/data/batch_sampler_shard.h"

#include <memory>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

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

Batches lists(const IndexBatches& batches) {
  Batches all;
  for (int64_t i = 0; i < batches.size(); ++i) {
    std::vector<int64_t>& batch = all.emplace_back(static_cast<size_t>(batches.length(i)));
    batches.copy(i, batch.data());
  }
  return all;
}

// The batches that each rank gets of the sampler's after `taken` units.
std::vector<Batches> shards_of(const std::shared_ptr<BatchSampler>& sampler, int world_size,
                               const Mode& mode, int64_t taken = 0) {
  std::vector<Batches> shards;
  for (int rank = 0; rank < world_size; ++rank) {
    BatchSamplerShard shard(sampler, {.rank = rank,
                                      .world_size = world_size,
                                      .split_batches = mode.split,
                                      .even_batches = mode.even});
    const ShardedPass pass = shard.begin_pass_after(taken);
    EXPECT_EQ(pass.batches.size(), shard.size_after(taken)) << "on rank " << rank;
    if (taken == 0) {
      EXPECT_EQ(shard.size(), pass.batches.size());
    }
    shards.push_back(lists(pass.batches));
  }
  return shards;
}

std::shared_ptr<BatchSampler> sequential(int64_t samples, int64_t batch_size,
                                         bool drop_last = false) {
  return std::make_shared<FixedSizeBatchSampler>(std::make_shared<SequentialSampler>(samples),
                                                 batch_size, drop_last);
}

// The same batches as lists, which says nothing of where they come from.
std::shared_ptr<BatchSampler> listed(int64_t samples, int64_t batch_size) {
  Batches batches = lists(sequential(samples, batch_size)->begin_pass());
  return std::make_shared<ListBatchSampler>(batches,
                                            ListBatchSamplerOptions{.batch_size = batch_size});
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
    EXPECT_EQ(
        shards_of(sequential(c.samples, c.batch_size, c.mode.drop_last), c.world_size, c.mode),
        c.shards);
    if (c.mode.drop_last) continue;
    EXPECT_EQ(shards_of(listed(c.samples, c.batch_size), c.world_size, c.mode), c.shards);
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
      {8, 2, 2, {}, {{{0, 1}, {4, 5}}, {{2, 3}, {6, 7}}}},
  });
}

// The last round of the longer examples.
TEST(BatchSamplerShard, FillsTheLastRoundOfLongPasses) {
  auto last_round = [](int64_t samples, int64_t batch_size, int world_size) {
    Batches last;
    for (const Batches& batches : shards_of(sequential(samples, batch_size), world_size, {})) {
      last.push_back(batches.back());
    }
    return last;
  };
  EXPECT_EQ(last_round(17, 3, 4), (Batches{{12, 13, 14}, {15, 16, 0}, {1, 2, 3}, {4, 5, 6}}));
  EXPECT_EQ(last_round(21, 3, 2), (Batches{{18, 19, 20}, {0, 1, 2}}));
  EXPECT_EQ(last_round(22, 3, 2), (Batches{{18, 19, 20}, {21, 0, 1}}));
  EXPECT_EQ(last_round(20, 3, 2), (Batches{{18, 19, 0}, {1, 2, 3}}));
  EXPECT_EQ(last_round(24, 3, 2), (Batches{{18, 19, 20}, {21, 22, 23}}));
}

TEST(BatchSamplerShard, GivesRanksWhatThereIsWhenUneven) {
  expect_shards({
      {10, 2, 3, {.even = false}, {{{0, 1}, {6, 7}}, {{2, 3}, {8, 9}}, {{4, 5}}}},
      {9, 2, 3, {.even = false}, {{{0, 1}, {6, 7}}, {{2, 3}, {8}}, {{4, 5}}}},
      {1, 2, 3, {.even = false}, {{{0}}, {}, {}}},
  });
}

TEST(BatchSamplerShard, DropsAnIncompleteRoundWithDropLast) {
  expect_shards({
      {10, 2, 3, {.drop_last = true}, {{{0, 1}}, {{2, 3}}, {{4, 5}}}},
      {10, 2, 3, {.even = false, .drop_last = true}, {{{0, 1}}, {{2, 3}}, {{4, 5}}}},
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
    EXPECT_THAT(shards_of(sequential(0, 2), 2, {.even = even}), ElementsAre(IsEmpty(), IsEmpty()));
    EXPECT_THAT(shards_of(std::make_shared<ListBatchSampler>(Batches{}), 2, {.even = even}),
                ElementsAre(IsEmpty(), IsEmpty()));
  }
}

// ---- Batches that differ in length

Batches of_lengths(const std::vector<int64_t>& lengths) {
  Batches batches;
  int64_t next = 0;
  for (int64_t length : lengths) {
    std::vector<int64_t>& batch = batches.emplace_back();
    while (static_cast<int64_t>(batch.size()) < length) batch.push_back(next++);
  }
  return batches;
}

TEST(BatchSamplerShard, RepeatsTheFirstBatchesWhereTheyDifferInLength) {
  const Batches five = of_lengths({1, 2, 3, 2, 1});
  EXPECT_THAT(
      shards_of(std::make_shared<ListBatchSampler>(five), 2, {}),
      ElementsAre(ElementsAre(five[0], five[2], five[4]), ElementsAre(five[1], five[3], five[0])));
  const Batches seven = of_lengths({1, 2, 3, 2, 1, 4, 2});
  EXPECT_THAT(shards_of(std::make_shared<ListBatchSampler>(seven), 3, {}),
              ElementsAre(ElementsAre(seven[0], seven[3], seven[6]),
                          ElementsAre(seven[1], seven[4], seven[0]),
                          ElementsAre(seven[2], seven[5], seven[1])));
  const Batches two = of_lengths({1, 2});
  EXPECT_THAT(shards_of(std::make_shared<ListBatchSampler>(two), 5, {}),
              ElementsAre(ElementsAre(two[0]), ElementsAre(two[1]), ElementsAre(two[0]),
                          ElementsAre(two[1]), ElementsAre(two[0])));
}

TEST(BatchSamplerShard, DealsDynamicBatchesUnevenlyOrDropsThem) {
  const Batches five = of_lengths({1, 2, 3, 2, 1});
  EXPECT_THAT(shards_of(std::make_shared<ListBatchSampler>(five), 2, {.even = false}),
              ElementsAre(ElementsAre(five[0], five[2], five[4]), ElementsAre(five[1], five[3])));
  EXPECT_THAT(shards_of(std::make_shared<ListBatchSampler>(
                            five, ListBatchSamplerOptions{.drop_last = true}),
                        2, {}),
              ElementsAre(ElementsAre(five[0], five[2]), ElementsAre(five[1], five[3])));
}

// A promise of equal lengths that is not kept loses no batch.
TEST(BatchSamplerShard, GivesBatchesThatBreakTheirPromise) {
  const Batches batches = of_lengths({2, 1, 2, 3});
  auto sampler =
      std::make_shared<ListBatchSampler>(batches, ListBatchSamplerOptions{.batch_size = 2});
  EXPECT_THAT(shards_of(sampler, 2, {}), ElementsAre(ElementsAre(batches[0], batches[2]),
                                                     ElementsAre(batches[1], batches[3])));
  BatchSamplerShard split(sampler, {.world_size = 2, .split_batches = true});
  EXPECT_THROW(split.begin_pass_after(0), c10::ValueError);
}

TEST(BatchSamplerShard, TellsItsBatchSizes) {
  BatchSamplerShard whole(sequential(9, 4), {.rank = 1, .world_size = 2});
  EXPECT_EQ(whole.batch_size(), 4);
  EXPECT_EQ(whole.total_batch_size(), 8);
  BatchSamplerShard split(sequential(9, 4), {.world_size = 2, .split_batches = true});
  EXPECT_EQ(split.batch_size(), 2);
  EXPECT_EQ(split.total_batch_size(), 4);
  BatchSamplerShard dynamic(std::make_shared<ListBatchSampler>(Batches{{0}}), {.world_size = 2});
  EXPECT_EQ(dynamic.batch_size(), std::nullopt);
  EXPECT_EQ(dynamic.total_batch_size(), std::nullopt);
}

TEST(BatchSamplerShard, ChangesEvennessForTheNextPass) {
  BatchSamplerShard shard(sequential(3, 2), {.rank = 1, .world_size = 2});
  EXPECT_THAT(lists(shard.begin_pass()), ElementsAre(ElementsAre(2, 0)));
  shard.set_even_batches(false);
  EXPECT_THAT(lists(shard.begin_pass()), ElementsAre(ElementsAre(2)));
}

// ---- What a pass tells about its last round

ShardedPass pass_of(int64_t samples, int rank, const Mode& mode, int64_t taken = 0) {
  return BatchSamplerShard(sequential(samples, 4, mode.drop_last), {.rank = rank,
                                                                    .world_size = 3,
                                                                    .split_batches = mode.split,
                                                                    .even_batches = mode.even})
      .begin_pass_after(taken);
}

TEST(ShardedPass, CountsTheRealRowsOfTheLastRound) {
  // Rounds of 12; the last one has 6: 4, 2 and none.
  const std::vector<int64_t> own{4, 2, 0};
  for (int rank = 0; rank < 3; ++rank) {
    const ShardedPass even = pass_of(18, rank, {});
    EXPECT_EQ(even.rounds, 2);
    EXPECT_EQ(even.real_rows_in_last_round, 6);
    EXPECT_EQ(even.own_rows_in_last_round, own[static_cast<size_t>(rank)]);
    EXPECT_EQ(even.ranks_in_last_round, 3);
    EXPECT_FALSE(even.ragged_last_round || even.ragged);
    const ShardedPass uneven = pass_of(18, rank, {.even = false});
    EXPECT_EQ(uneven.batches.size(), rank == 2 ? 1 : 2);
    EXPECT_EQ(uneven.rounds, 2);
    EXPECT_EQ(uneven.ranks_in_last_round, 2);
    EXPECT_EQ(uneven.own_rows_in_last_round, own[static_cast<size_t>(rank)]);
    EXPECT_TRUE(uneven.ragged_last_round);
    const ShardedPass dropped = pass_of(18, rank, {.drop_last = true});
    EXPECT_EQ(dropped.rounds, 1);
    EXPECT_EQ(dropped.real_rows_in_last_round, 12);
    EXPECT_EQ(dropped.own_rows_in_last_round, 4);
    EXPECT_FALSE(dropped.ragged_last_round);
  }
}

TEST(ShardedPass, CountsTheRealRowsOfDynamicBatches) {
  auto sampler = std::make_shared<ListBatchSampler>(of_lengths({1, 2, 3, 4, 5}));
  for (int rank = 0; rank < 3; ++rank) {
    const ShardedPass pass =
        BatchSamplerShard(sampler, {.rank = rank, .world_size = 3}).begin_pass_after(0);
    EXPECT_TRUE(pass.ragged);
    EXPECT_EQ(pass.rounds, 2);
    EXPECT_EQ(pass.own_rows_in_last_round, (std::vector<int64_t>{4, 5, 0})[rank]);
    EXPECT_EQ(pass.taken_after(1), 3);
    EXPECT_EQ(pass.taken_after(2), 5);
  }
}

// ---- Passes that begin in the middle

TEST(BatchSamplerShard, BeginsAfterSamplesThatWereTaken) {
  EXPECT_EQ(shards_of(sequential(11, 2), 2, {}, /*taken=*/4),
            (std::vector<Batches>{{{4, 5}, {8, 9}}, {{6, 7}, {10, 0}}}));
  EXPECT_EQ(shards_of(sequential(11, 2), 3, {}, /*taken=*/4),
            (std::vector<Batches>{{{4, 5}, {10, 0}}, {{6, 7}, {1, 2}}, {{8, 9}, {3, 4}}}));
  EXPECT_EQ(shards_of(sequential(11, 2), 2, {.even = false}, /*taken=*/9),
            (std::vector<Batches>{{{9, 10}}, {}}));
  EXPECT_EQ(shards_of(sequential(11, 4), 2, {.split = true}, /*taken=*/8),
            (std::vector<Batches>{{{8, 9}}, {{10, 0}}}));
  EXPECT_EQ(shards_of(sequential(11, 2, true), 2, {.drop_last = true}, /*taken=*/4),
            (std::vector<Batches>{{{4, 5}}, {{6, 7}}}));
  EXPECT_EQ(shards_of(sequential(4, 2), 2, {}, /*taken=*/4), (std::vector<Batches>{{}, {}}));
}

TEST(BatchSamplerShard, BeginsAfterBatchesThatWereTaken) {
  const Batches batches = of_lengths({1, 2, 3, 4, 5});
  auto sampler = std::make_shared<ListBatchSampler>(batches);
  EXPECT_EQ(shards_of(sampler, 2, {}, /*taken=*/2),
            (std::vector<Batches>{{batches[2], batches[4]}, {batches[3], batches[0]}}));
  EXPECT_EQ(shards_of(sampler, 2, {}, /*taken=*/5), (std::vector<Batches>{{}, {}}));
}

// Ranks that leave off anywhere, to be followed by other numbers of ranks, visit each sample once.
TEST(BatchSamplerShard, LosesAndRepeatsNothingWhenTheNumberOfRanksChanges) {
  for (int64_t samples : {3, 7, 12, 25}) {
    for (int before : {1, 2, 3}) {
      for (int after : {1, 2, 4}) {
        SCOPED_TRACE(testing::Message()
                     << samples << " samples, " << before << " ranks, then " << after);
        std::vector<int64_t> seen;
        const int64_t taken = 2 * before;
        if (taken >= samples) continue;
        for (const Batches& batches : shards_of(sequential(samples, 2), before, {})) {
          seen.insert(seen.end(), batches[0].begin(), batches[0].end());
        }
        for (const Batches& batches :
             shards_of(sequential(samples, 2), after, {.even = false}, taken)) {
          for (const auto& batch : batches) seen.insert(seen.end(), batch.begin(), batch.end());
        }
        std::vector<int64_t> all(static_cast<size_t>(samples));
        for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
        EXPECT_THAT(seen, testing::UnorderedElementsAreArray(all));
      }
    }
  }
}

TEST(BatchSamplerShard, RefusesToBeginOutsideThePass) {
  BatchSamplerShard samples(sequential(4, 2), {.world_size = 2});
  EXPECT_THROW(samples.begin_pass_after(5), c10::ValueError);
  EXPECT_THROW(samples.begin_pass_after(-1), c10::ValueError);
  BatchSamplerShard batches(std::make_shared<ListBatchSampler>(of_lengths({1, 2})),
                            {.world_size = 2});
  EXPECT_THROW(batches.begin_pass_after(3), c10::ValueError);
}

TEST(BatchSamplerShard, RefusesToSplitWhatIsNotDivisible) {
  try {
    shards_of(sequential(30, 3), 5, {.split = true});
    FAIL() << "no exception";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("batch size 3 is not divisible by the number of data shares, 5"));
  }
  // One batch, and batches of one length: what is missing is a size that is promised.
  for (const Batches& batches : {Batches{{0, 1}}, Batches{{0, 1}, {2, 3}}}) {
    try {
      shards_of(std::make_shared<ListBatchSampler>(batches), 2, {.split = true});
      FAIL() << "no exception";
    } catch (const c10::ValueError& error) {
      EXPECT_THAT(error.what(), HasSubstr("the batch sampler has no batch size"));
    }
  }
}

// Batches that are not fixed: of five, the last round of three ranks has two.
TEST(BatchSamplerShard, CountsWhatARankGetsOfAnUnevenRound) {
  for (const bool even : {false, true}) {
    for (int rank = 0; rank < 3; ++rank) {
      BatchSamplerShard shard(std::make_shared<ListBatchSampler>(of_lengths({2, 1, 3, 1, 2})),
                              {.rank = rank, .world_size = 3, .even_batches = even});
      const int64_t expected = even || rank < 2 ? 2 : 1;
      EXPECT_EQ(shard.size(), expected) << rank;
      EXPECT_EQ(shard.begin_pass().size(), expected) << rank;
    }
  }
}

TEST(BatchSamplerShard, RefusesARankOutsideItsWorldAndNoSampler) {
  EXPECT_THROW(BatchSamplerShard(sequential(4, 2), {.rank = 2, .world_size = 2}), c10::ValueError);
  EXPECT_THROW(BatchSamplerShard(sequential(4, 2), {.rank = -1, .world_size = 2}), c10::ValueError);
  EXPECT_THROW(BatchSamplerShard(sequential(4, 2), {.rank = 0, .world_size = 0}), c10::ValueError);
  EXPECT_THROW(BatchSamplerShard(nullptr, {}), c10::ValueError);
}

TEST(BatchSamplerShard, PassesOnToItsSampler) {
  auto seedable =
      std::make_shared<SeedableRandomSampler>(10, SeedableRandomSamplerOptions{.data_seed = 1});
  BatchSamplerShard shard(std::make_shared<FixedSizeBatchSampler>(seedable, 2), {.world_size = 2});
  shard.set_epoch(4);
  const nlohmann::json state = shard.state_dict();
  shard.begin_pass();
  shard.end_pass();
  EXPECT_EQ(seedable->epoch(), 5);
  shard.load_state_dict(state);
  EXPECT_EQ(seedable->epoch(), 4);
}

// ---- begin_unshared_pass

TEST(BeginUnsharedPass, GivesTheBatchesAsTheyAre) {
  ShardedPass pass = begin_unshared_pass(*sequential(5, 2));
  EXPECT_THAT(lists(pass.batches),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
  EXPECT_EQ(pass.rounds, 3);
  EXPECT_EQ(pass.real_rows_in_last_round, 1);
  EXPECT_EQ(pass.taken_after(2), 4);
  EXPECT_EQ(pass.taken_after(3), 5);
  pass = begin_unshared_pass(*sequential(5, 2), /*taken=*/3);
  EXPECT_THAT(lists(pass.batches), ElementsAre(ElementsAre(3, 4)));
  EXPECT_THAT(lists(begin_unshared_pass(*sequential(5, 2, true)).batches),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  EXPECT_THROW(begin_unshared_pass(*sequential(5, 2), 6), c10::ValueError);
}

TEST(BeginUnsharedPass, GivesListsAsTheyAre) {
  const Batches batches = of_lengths({1, 3, 2});
  ListBatchSampler sampler(batches);
  EXPECT_EQ(lists(begin_unshared_pass(sampler).batches), batches);
  const ShardedPass rest = begin_unshared_pass(sampler, 1);
  EXPECT_THAT(lists(rest.batches), ElementsAre(batches[1], batches[2]));
  EXPECT_EQ(rest.own_rows_in_last_round, 2);
  EXPECT_EQ(rest.taken_after(1), 2);
  EXPECT_THAT(lists(begin_unshared_pass(sampler, 3).batches), IsEmpty());
  EXPECT_THROW(begin_unshared_pass(sampler, 4), c10::ValueError);
}

// A class derived from FixedSizeBatchSampler may cut its batches otherwise.
TEST(BeginUnsharedPass, GivesTheBatchesThatADerivedSamplerCuts) {
  struct ShortFirst : FixedSizeBatchSampler {
    using FixedSizeBatchSampler::FixedSizeBatchSampler;
    IndexBatches begin_pass() override { return IndexBatches::from_lists({{4}, {2, 3}, {0, 1}}); }
  };
  ShortFirst sampler(std::make_shared<SequentialSampler>(5), 2);
  EXPECT_THAT(lists(begin_unshared_pass(sampler).batches),
              ElementsAre(ElementsAre(4), ElementsAre(2, 3), ElementsAre(0, 1)));
}

// Its drop_last is about padding ranks' last batches; a rank alone has nothing to pad.
TEST(BeginUnsharedPass, LosesNoListThatIsShort) {
  const Batches batches{{0, 1}, {2, 3}, {4}};
  ListBatchSampler sampler(batches, {.batch_size = 2, .drop_last = true});
  const ShardedPass pass = begin_unshared_pass(sampler);
  EXPECT_EQ(pass.batches.size(), sampler.size());
}

}  // namespace
}  // namespace accelerate
