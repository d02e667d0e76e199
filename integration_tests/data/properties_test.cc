// The promises of every loader about who gets which sample, over random draws. Without a cluster: a
// rank's share needs no other rank, so there can be many draws.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "accelerate/data/batch_sampler_shard.h"
#include "accelerate/data/iterable_dataset_shard.h"
#include "accelerate/data/sampler.h"
#include "integration_tests/data/draw.h"

namespace accelerate::data_tests {
namespace {

struct GivenBatch {
  Values samples;
  BatchRound round;
  bool end = false;
  int64_t remainder = 0;
};

struct GivenPass {
  std::vector<GivenBatch> batches;
  int64_t size = -1;  // what the loader said before; -1: unknown
};

GivenPass one_pass(const Draw& draw, int rank) {
  return with_loader(draw, [&](auto loader) {
    GradientState state;
    auto shard = loader.shard(shard_options(draw, rank, &state));
    GivenPass pass;
    if (draw.source != Source::kUnsizedStream) pass.size = shard.size();
    for (auto& batch : shard) {
      pass.batches.push_back({.samples = values(batch),
                              .round = *state.round(),
                              .end = state.end_of_dataloader(),
                              .remainder = state.remainder()});
    }
    EXPECT_FALSE(state.in_dataloader()) << draw.text();
    // Ranks agree on the epoch, also those that had no batch in it.
    const Values any(static_cast<size_t>(draw.samples));
    EXPECT_EQ(shard.epoch(), expected_rounds(any, draw) > 0 ? 1 : 0)
        << draw.text() << " rank " << rank;
    return pass;
  });
}

// Sample by sample, as the model says.
TEST(LoaderProperties, GiveEachRankTheSamplesOfTheModel) {
  for (uint64_t number = 0; number < 2500; ++number) {
    const Draw draw = draw_loader(number);
    const Values order = orders(draw, 1)[0];
    for (int rank = 0; rank < draw.geometry.world_size; ++rank) {
      const std::vector<ExpectedBatch> expected = expected_share(order, draw, rank);
      const GivenPass given = one_pass(draw, rank);
      ASSERT_EQ(given.batches.size(), expected.size()) << draw.text() << " rank " << rank;
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(given.batches[i].samples, expected[i].samples)
            << draw.text() << " rank " << rank << " batch " << i;
      }
      if (given.size >= 0) {
        ASSERT_EQ(given.size, expected.size()) << draw.text() << " rank " << rank;
      }
    }
  }
}

// The same claims without a model: which samples come how often, where.
TEST(LoaderProperties, RepeatOnlyWhatFillsTheLastRoundAndLoseOnlyWhatIsDropped) {
  for (uint64_t number = 10000; number < 12500; ++number) {
    const Draw draw = draw_loader(number);
    const Geometry& geometry = draw.geometry;
    std::vector<GivenPass> ranks;
    size_t most = 0;
    for (int rank = 0; rank < geometry.world_size; ++rank) {
      ranks.push_back(one_pass(draw, rank));
      most = std::max(most, ranks.back().batches.size());
    }
    std::map<int64_t, int> before_last;
    std::map<int64_t, int> in_last;
    for (const GivenPass& rank : ranks) {
      if (geometry.fills_up(draw.source)) {
        ASSERT_EQ(rank.batches.size(), most) << draw.text();
      }
      for (size_t i = 0; i < rank.batches.size(); ++i) {
        auto& counts = i + 1 == most ? in_last : before_last;
        for (int64_t sample : rank.batches[i].samples) ++counts[sample];
        if (geometry.fills_up(draw.source)) {
          ASSERT_EQ(rank.batches[i].samples.size(), geometry.slice()) << draw.text();
        }
      }
    }
    std::map<int64_t, int> all = before_last;
    for (const auto& [sample, count] : in_last) all[sample] += count;
    for (const auto& [sample, count] : before_last) {
      ASSERT_EQ(count, 1) << draw.text() << " sample " << sample;
    }
    if (!geometry.fills_up(draw.source) || geometry.drop_last) {
      for (const auto& [sample, count] : all) {
        ASSERT_EQ(count, 1) << draw.text() << " sample " << sample;
      }
    }
    const int64_t kept =
        geometry.drop_last ? draw.samples / geometry.round() * geometry.round() : draw.samples;
    ASSERT_EQ(all.size(), kept) << draw.text();
  }
}

// gather_for_metrics relies on it: the real rows come first, on each rank and over ranks.
TEST(LoaderProperties, TellWhichRowsAreRealAndWhichBatchIsLast) {
  for (uint64_t number = 20000; number < 22500; ++number) {
    const Draw draw = draw_loader(number);
    const Geometry& geometry = draw.geometry;
    const Values order = orders(draw, 1)[0];
    std::vector<GivenPass> ranks;
    for (int rank = 0; rank < geometry.world_size; ++rank) ranks.push_back(one_pass(draw, rank));
    const int64_t rounds = expected_rounds(order, draw);
    for (int64_t round = 0; round < rounds; ++round) {
      Values real;
      Values gathered;
      int with_batch = 0;
      int64_t real_rows = BatchRound::kAll;
      int told_ranks = 0;
      bool ragged = false;
      const auto i = static_cast<size_t>(round);
      for (const GivenPass& rank : ranks) {
        if (i >= rank.batches.size()) continue;
        const GivenBatch& batch = rank.batches[i];
        ++with_batch;
        real_rows = batch.round.real_rows;
        told_ranks = batch.round.shares;
        ragged = batch.round.ragged;
        const auto own = batch.round.own_rows == BatchRound::kAll
                             ? static_cast<std::ptrdiff_t>(batch.samples.size())
                             : static_cast<std::ptrdiff_t>(batch.round.own_rows);
        ASSERT_LE(own, batch.samples.size()) << draw.text();
        real.insert(real.end(), batch.samples.begin(), batch.samples.begin() + own);
        gathered.insert(gathered.end(), batch.samples.begin(), batch.samples.end());
        ASSERT_EQ(batch.end, i + 1 == rank.batches.size()) << draw.text() << " round " << round;
      }
      const Values expected = expected_round(order, draw, round);
      ASSERT_EQ(real, expected) << draw.text() << " round " << round;
      if (!ragged) {
        if (real_rows != BatchRound::kAll) gathered.resize(static_cast<size_t>(real_rows));
        ASSERT_EQ(gathered, expected) << draw.text() << " round " << round;
      }
      ASSERT_EQ(told_ranks == 0 ? geometry.world_size : told_ranks, with_batch)
          << draw.text() << " round " << round;
    }
  }
}

// GradientState::remainder(): the rows of the last round, 0 if it is full, -1 if unknown.
TEST(LoaderProperties, TellTheRemainderAsDocumented) {
  for (uint64_t number = 30000; number < 31000; ++number) {
    const Draw draw = draw_loader(number);
    const int64_t rest = draw.samples % draw.geometry.round();
    const GivenPass pass = one_pass(draw, 0);
    for (const GivenBatch& batch : pass.batches) {
      int64_t expected = rest;
      if (draw.source == Source::kUnsizedStream && !batch.end) expected = -1;
      if (draw.geometry.drop_last) expected = -1;
      ASSERT_EQ(batch.remainder, expected) << draw.text();
    }
  }
}

// The shard of a list of batches of any lengths: whole batches in turn, missing ones repeated.
TEST(LoaderProperties, ShareBatchesOfAnyLengths) {
  for (uint64_t number = 0; number < 3000; ++number) {
    Dice dice(number);
    const int world_size = static_cast<int>(1 + dice.below(8));
    const bool even = !dice.one_in(3);
    const bool drop_last = dice.one_in(4);
    // Some lists promise a batch size, and break the promise.
    const bool promises = dice.one_in(3);
    std::vector<Values> lists(static_cast<size_t>(dice.below(30)));
    int64_t next = 0;
    for (Values& list : lists) {
      list.resize(static_cast<size_t>(1 + dice.below(5)));
      for (int64_t& sample : list) sample = next++;
    }
    if (lists.size() > 1 && promises) {
      lists[0] = {next, next + 1, next + 2};
      lists[1] = {next + 3};
      lists.push_back({next + 4, next + 5});
    }
    ListBatchSamplerOptions options{.drop_last = drop_last};
    if (promises) options.batch_size = 3;
    if (lists.size() < 2) options.batch_size.reset();
    const std::string text = "draw " + std::to_string(number) + ": " +
                             std::to_string(lists.size()) + " lists, world_size " +
                             std::to_string(world_size) + (even ? " even" : " uneven") +
                             (drop_last ? " drop_last" : "") + (promises ? " promises" : "");
    const auto count = static_cast<int64_t>(lists.size());
    for (int rank = 0; rank < world_size; ++rank) {
      BatchSamplerShard shard(std::make_shared<ListBatchSampler>(lists, options),
                              {.rank = rank, .world_size = world_size, .even_batches = even});
      std::vector<Values> expected;
      for (int64_t i = rank; i < (count + world_size - 1) / world_size * world_size;
           i += world_size) {
        const bool full_round = i - rank + world_size <= count;
        if (!full_round && (drop_last || (!even && i >= count))) continue;
        const int64_t cycle = std::min<int64_t>(count, world_size);
        expected.push_back(lists[static_cast<size_t>(i < count ? i : (i - count) % cycle)]);
      }
      const IndexBatches batches = shard.begin_pass();
      ASSERT_EQ(batches.size(), expected.size()) << text << " rank " << rank;
      ASSERT_EQ(shard.size(), expected.size()) << text << " rank " << rank;
      for (int64_t i = 0; i < batches.size(); ++i) {
        ASSERT_EQ(values(batches[i]), expected[static_cast<size_t>(i)]) << text << " rank " << rank;
      }
    }
  }
}

// A loader over given batches says how many it gives, and gives each of them, whatever it promised.
TEST(LoaderProperties, CountTheBatchesOfAList) {
  for (uint64_t number = 0; number < 1000; ++number) {
    Dice dice(number);
    std::vector<Values> lists(static_cast<size_t>(dice.below(9)));
    for (Values& list : lists) list.assign(static_cast<size_t>(1 + dice.below(3)), dice.below(9));
    ListBatchSamplerOptions options{.drop_last = dice.one_in(3)};
    if (dice.one_in(2)) options.batch_size = 1 + dice.below(3);
    DataLoader loader(make_tensor_dataset(at::arange(9)),
                      {.batch_sampler = std::make_shared<ListBatchSampler>(lists, options)});
    std::vector<Values> given;
    for (auto& batch : loader) given.push_back(values(batch));
    ASSERT_EQ(given, lists) << "draw " << number;
    ASSERT_EQ(loader.size(), given.size()) << "draw " << number;
  }
}

// The classes themselves, many more draws.
TEST(LoaderProperties, ShardSamplersAndStreamsByTheModel) {
  for (uint64_t number = 40000; number < 60000; ++number) {
    Draw draw = draw_loader(number);
    draw.order = Order::kSequential;
    Values order;
    for (int64_t i = 0; i < draw.samples; ++i) order.push_back(i);
    Dice dice(number);
    const int64_t taken = dice.below(draw.samples + 1);
    const Geometry& geometry = draw.geometry;
    const auto rank = static_cast<int>(dice.below(geometry.world_size));
    draw.source = Source::kTensors;
    BatchSamplerShard sampler(
        std::make_shared<FixedSizeBatchSampler>(std::make_shared<SequentialSampler>(draw.samples),
                                                geometry.batch_size, geometry.drop_last),
        {.rank = rank,
         .world_size = geometry.world_size,
         .split_batches = geometry.split,
         .even_batches = geometry.even});
    if (geometry.world_size > 1) {
      const std::vector<ExpectedBatch> expected = expected_share(order, draw, rank, taken);
      const ShardedPass pass = sampler.begin_pass_after(taken);
      ASSERT_EQ(pass.batches.size(), expected.size()) << draw.text() << " taken " << taken;
      ASSERT_EQ(sampler.size_after(taken), expected.size()) << draw.text() << " taken " << taken;
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(values(pass.batches[static_cast<int64_t>(i)]), expected[i].samples)
            << draw.text() << " rank " << rank << " taken " << taken << " batch " << i;
      }
    }

    draw.source = Source::kSizedStream;
    IterableDatasetShard stream(CountingStream(draw.samples, true),
                                {.batch_size = geometry.batch_size,
                                 .drop_last = geometry.drop_last,
                                 .rank = rank,
                                 .world_size = geometry.world_size,
                                 .split_batches = geometry.split});
    if (geometry.world_size == 1) continue;
    stream.reset();
    stream.skip_to(taken);
    for (const ExpectedBatch& expected : expected_share(order, draw, rank, taken)) {
      const auto slice = stream.next_slice();
      ASSERT_TRUE(slice.has_value()) << draw.text() << " taken " << taken;
      ASSERT_EQ(slice->samples, expected.samples) << draw.text() << " taken " << taken;
      ASSERT_EQ(slice->own_rows, expected.own_rows) << draw.text() << " taken " << taken;
    }
    ASSERT_FALSE(stream.next_slice().has_value()) << draw.text() << " taken " << taken;
    stream.reset();
    int64_t count = 0;
    while (stream.next()) ++count;
    ASSERT_EQ(stream.size(), count) << draw.text();
  }
}

}  // namespace
}  // namespace accelerate::data_tests
