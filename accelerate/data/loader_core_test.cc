#include "accelerate/data/loader_core.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "accelerate/data/data_loader.h"
#include "accelerate/testing/loader_passes.h"
#include "accelerate/testing/recorded_warnings.h"
#include "accelerate/testing/threaded_group.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using internal::DatasetFacts;
using internal::LoaderCore;
using internal::LoaderMode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using nlohmann::json;

struct Stream {
  int64_t count = 0;
  int64_t at = 0;

  std::optional<int64_t> next() { return at < count ? std::optional(at++) : std::nullopt; }
  void reset() { at = 0; }
  int64_t size() const { return count; }
};

// A stream that has a state to save, and counts the elements read.
struct StatefulStream : Stream {
  int64_t read = 0;

  std::optional<int64_t> next() {
    ++read;
    return Stream::next();
  }
  json state_dict() { return {{"at", at}}; }
  void load_state_dict(const json& state) { at = state.at("at").get<int64_t>(); }
};

// ---- Who reads what, and how much

TEST(LoaderCore, DecidesWhoReads) {
  const DatasetFacts map{.size = 10};
  const DatasetFacts stream{.size = 10, .is_stream = true};
  const DatasetFacts shards{.size = 10, .is_stream = true, .num_shards = 4};
  auto mode = [](const DatasetFacts& facts, const ShardOptions& options,
                 const DataLoaderOptions& loader = {}) {
    return LoaderCore(facts, loader).shard(options)->mode();
  };
  EXPECT_EQ(LoaderCore(map, {}).mode(), LoaderMode::kWhole);
  EXPECT_EQ(mode(map, {}), LoaderMode::kWhole);
  EXPECT_EQ(mode(map, {.num_shares = 2}), LoaderMode::kShard);
  EXPECT_EQ(mode(stream, {.num_shares = 2, .device_placement = false}), LoaderMode::kShard);
  EXPECT_EQ(mode(stream, {.num_shares = 2, .dispatch_batches = false}), LoaderMode::kShard);
  EXPECT_EQ(mode(shards, {.num_shares = 4, .dispatch_batches = false}), LoaderMode::kSelfShard);
  EXPECT_EQ(mode(shards, {.num_shares = 5, .dispatch_batches = false}), LoaderMode::kShard);
  EXPECT_EQ(mode(shards, {.num_shares = 2, .split_batches = true, .dispatch_batches = false},
                 {.batch_size = 2}),
            LoaderMode::kShard);
  EXPECT_THROW(mode(map, {.dispatch_batches = true, .device_placement = false}), c10::ValueError);
  EXPECT_THROW(mode(map, {.num_shares = 2, .dispatch_batches = true}), c10::ValueError)
      << "there is no group";
}

// The next pass is as after HF Accelerate's loader, which reads a batch ahead: where that is the
// last and a short one, it has brought the sampler to its end.
TEST(LoaderCore, EndsAPassThatIsLeftBeforeItsLastShortBatch) {
  const auto next_pass = [](int64_t samples, int64_t batches) {
    const DataLoader loader(
        list(samples),
        {.batch_size = 2, .shuffle = true, .generator = at::detail::createCPUGenerator(3)});
    begin_of_pass(loader, batches);
    return one_pass(loader);
  };
  constexpr int64_t kWhole = -1;
  EXPECT_EQ(next_pass(60, 29), next_pass(60, 1)) << "a whole batch is left";
  EXPECT_NE(next_pass(60, 29), next_pass(60, kWhole));
  EXPECT_EQ(next_pass(59, 29), next_pass(59, kWhole)) << "one sample is left";
  EXPECT_NE(next_pass(59, 28), next_pass(59, kWhole));
}

TEST(LoaderCore, WarnsOfCopiesThatCannotOverlap) {
  const c10::WarningUtils::WarnAlways each_time;
  auto warnings_of = [](const ShardOptions& options, const DataLoaderOptions& loader = {}) {
    const RecordedWarnings warnings;
    LoaderCore({.size = 10}, loader).shard(options);
    return warnings.texts();
  };
  EXPECT_THAT(warnings_of({.device = c10::kMeta, .non_blocking = true}),
              ElementsAre(HasSubstr("pin_memory")));
  EXPECT_THAT(warnings_of({.device = c10::kMeta, .non_blocking = true}, {.pin_memory = true}),
              IsEmpty());
  EXPECT_THAT(warnings_of({.device = c10::kMeta}), IsEmpty());
  EXPECT_THAT(warnings_of({.non_blocking = true}), IsEmpty()) << "on the CPU nothing is copied";
  EXPECT_THAT(warnings_of({.device = c10::kMeta, .device_placement = false, .non_blocking = true}),
              IsEmpty());
}

TEST(LoaderCore, CountsBatchesAndSamples) {
  const DatasetFacts map{.size = 10};
  auto core = LoaderCore(map, {.batch_size = 4}).shard({.share = 1, .num_shares = 2});
  EXPECT_EQ(core->size(0), 2);
  EXPECT_EQ(core->size(1), 1);
  EXPECT_EQ(core->size(5), 0);
  EXPECT_EQ(core->total_batch_size(), 8);
  EXPECT_EQ(core->total_dataset_length(), 10);
  core->set_even_batches(false);
  EXPECT_FALSE(core->even_batches());
  EXPECT_EQ(core->size(0), 1);
  auto split = LoaderCore(map, {.batch_size = 4}).shard({.num_shares = 2, .split_batches = true});
  EXPECT_EQ(split->size(0), 3);
  EXPECT_EQ(split->total_batch_size(), 4);
  auto stream = LoaderCore({.size = 10, .is_stream = true}, {.batch_size = 4})
                    .shard({.num_shares = 2, .dispatch_batches = false});
  EXPECT_EQ(stream->size(0), 2);
  EXPECT_FALSE(stream->can_set_even_batches());
  EXPECT_THROW(stream->set_even_batches(false), c10::Error);
  const LoaderCore unsized({.is_stream = true}, {});
  EXPECT_THROW(unsized.size(0), c10::ValueError);
  EXPECT_THROW(unsized.total_dataset_length(), c10::ValueError);
  EXPECT_THROW(LoaderCore({}, {}), c10::ValueError);
}

// size() equals the number of batches of a pass, whatever the options.
TEST(LoaderCore, CountsTheBatchesThatAPassGives) {
  for (int64_t samples : {0, 1, 5, 8, 13}) {
    for (int world_size : {1, 2, 4}) {
      for (int options = 0; options < 8; ++options) {
        const bool split = (options & 1) != 0;
        const bool even = (options & 2) != 0;
        const bool drop_last = (options & 4) != 0;
        for (int rank = 0; rank < world_size; ++rank) {
          SCOPED_TRACE(::testing::Message()
                       << samples << " samples, rank " << rank << " of " << world_size << ", split "
                       << split << ", even " << even << ", drop_last " << drop_last);
          const ShardOptions shard{.share = rank,
                                   .num_shares = world_size,
                                   .split_batches = split,
                                   .dispatch_batches = false,
                                   .even_batches = even};
          DataLoader map =
              DataLoader(list(samples), {.batch_size = 4, .drop_last = drop_last}).shard(shard);
          EXPECT_EQ(one_pass(map).size(), map.size());
          DataLoader stream =
              DataLoader(Stream{samples}, {.batch_size = 4, .drop_last = drop_last}).shard(shard);
          EXPECT_EQ(one_pass(stream).size(), stream.size());
        }
      }
    }
  }
}

TEST(LoaderCore, CountsTheBatchesOfLists) {
  for (bool drop_last : {false, true}) {
    for (std::optional<int64_t> batch_size :
         {std::optional<int64_t>(), std::optional<int64_t>(2)}) {
      for (int world_size : {1, 2, 3}) {
        SCOPED_TRACE(::testing::Message() << "drop_last " << drop_last << ", batch size "
                                          << batch_size.value_or(0) << ", ranks " << world_size);
        auto sampler = std::make_shared<ListBatchSampler>(
            Batches{{0, 1}, {2, 3}, {4, 5}, {6}},
            ListBatchSamplerOptions{.batch_size = batch_size, .drop_last = drop_last});
        DataLoader loader =
            DataLoader(list(7), {.batch_sampler = sampler}).shard({.num_shares = world_size});
        EXPECT_EQ(one_pass(loader).size(), loader.size());
      }
    }
  }
}

// ---- Another sampler

struct Backwards : Sampler {
  explicit Backwards(int64_t size) : count(size) {}
  int64_t size() const override { return count; }
  IndexOrder begin_pass() override { return IndexOrder(at::arange(count - 1, -1, -1)); }
  int64_t count;
};

TEST(LoaderCore, TakesAnotherSamplerForTheNextPass) {
  for (const int num_workers : {0, 2}) {
    DataLoader loader(list(5), {.batch_size = 2, .num_workers = num_workers});
    EXPECT_NE(dynamic_cast<SequentialSampler*>(loader.sampler().get()), nullptr);
    const auto backwards = std::make_shared<Backwards>(5);
    Values seen;
    for (auto& batch : loader) {
      seen.push_back(batch[0].item<int64_t>());
      loader.set_sampler(backwards);
    }
    EXPECT_EQ(seen, (Values{0, 2, 4}));
    EXPECT_EQ(loader.sampler(), backwards);
    EXPECT_EQ(one_pass(loader), (Batches{{4, 3}, {2, 1}, {0}}));
  }
}

TEST(LoaderCore, SharesTheOrderOfAnotherSampler) {
  const std::vector<Batches> expected{Batches{Values{7, 6}, Values{3, 2}},
                                      Batches{Values{5, 4}, Values{1, 0}}};
  for (int rank = 0; rank < 2; ++rank) {
    DataLoader shard =
        DataLoader(list(8), {.batch_size = 2}).shard({.share = rank, .num_shares = 2});
    shard.set_sampler(std::make_shared<Backwards>(8));
    EXPECT_EQ(one_pass(shard), expected[rank]);
    shard.set_sampler(std::make_shared<Backwards>(4));
    EXPECT_EQ(shard.size(), 1) << "of the samples that the sampler visits";
    EXPECT_EQ(one_pass(shard), Batches{expected[rank][1]});
  }
}

TEST(LoaderCore, ForgetsALoadedPositionWithItsOrder) {
  DataLoader loader(list(6), {.batch_size = 2});
  begin_of_pass(loader, 1);
  DataLoader resumed(list(6), {.batch_size = 2});
  resumed.load_state_dict(loader.state_dict());
  resumed.set_sampler(std::make_shared<Backwards>(6));
  EXPECT_EQ(one_pass(resumed), (Batches{{5, 4}, {3, 2}, {1, 0}}));
}

TEST(LoaderCore, HasASamplerOnlyWhereItDecides) {
  const auto sampler = std::make_shared<Backwards>(4);
  DataLoader stream(Stream{4});
  EXPECT_EQ(stream.sampler(), nullptr);
  EXPECT_THROW(stream.set_sampler(sampler), c10::ValueError);
  DataLoader listed(list(4),
                    {.batch_sampler = std::make_shared<ListBatchSampler>(Batches{{0, 1}, {2, 3}})});
  EXPECT_EQ(listed.sampler(), nullptr);
  EXPECT_THROW(listed.set_sampler(sampler), c10::ValueError);
  DataLoader loader(list(4));
  EXPECT_THROW(loader.set_sampler(nullptr), c10::ValueError);
  EXPECT_NE(loader.sampler(), nullptr) << "it stays as it was";
}

// ---- Randomness

TEST(LoaderCore, GivesRanksOneOrderWhateverTheirGenerators) {
  for (bool seedable : {false, true}) {
    Values seen;
    std::mutex mutex;
    run_ranks(2, [&](const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
      const int rank = group->getRank();
      DataLoader shard = DataLoader(list(12), {.batch_size = 2,
                                               .shuffle = true,
                                               .generator = seeded(static_cast<uint64_t>(rank))})
                             .shard({.share = rank,
                                     .num_shares = 2,
                                     .group = group,
                                     .use_seedable_sampler = seedable,
                                     .data_seed = static_cast<uint64_t>(rank)});
      for (int pass = 0; pass < 2; ++pass) {
        for (const Values& batch : one_pass(shard)) {
          std::lock_guard<std::mutex> lock(mutex);
          seen.insert(seen.end(), batch.begin(), batch.end());
        }
      }
    });
    Values twice = list(12);
    for (int64_t sample : list(12)) twice.push_back(sample);
    EXPECT_THAT(seen, ::testing::UnorderedElementsAreArray(twice)) << "seedable " << seedable;
  }
}

// Ranks of which one gets no batch stay in the same epoch, hence in the same order.
TEST(LoaderCore, GivesRanksOneOrderAfterAPassWithoutABatch) {
  Values seen;
  for (int rank = 0; rank < 2; ++rank) {
    DataLoader shard = DataLoader(list(20), {.batch_size = 20, .shuffle = true})
                           .shard({.share = rank,
                                   .num_shares = 2,
                                   .even_batches = false,
                                   .use_seedable_sampler = true,
                                   .data_seed = 1});
    one_pass(shard);
    shard.set_even_batches(true);
    // Even batches of 20 of 20: both ranks give the same permutation.
    const Batches batches = one_pass(shard);
    ASSERT_EQ(batches.size(), 1);
    if (rank == 0) seen = batches[0];
    if (rank == 1) {
      EXPECT_EQ(batches[0], seen);
    }
  }
}

// ---- Epochs

// The rest of an epoch, even if nothing is left, is followed by what would have followed it.
TEST(DataLoader, GoesOnAfterASkippedPassAsAfterAWholeOne) {
  for (int64_t skipped : {1, 3, 4}) {
    SCOPED_TRACE(skipped);
    DataLoader whole(list(9), {.batch_size = 3, .shuffle = true, .generator = seeded(1)});
    DataLoader other(list(9), {.batch_size = 3, .shuffle = true, .generator = seeded(1)});
    const Batches first = one_pass(whole);
    const auto from = first.begin() + std::min<int64_t>(skipped, 3);
    EXPECT_EQ(one_pass(other.skip_first(skipped)), Batches(from, first.end()));
    EXPECT_EQ(other.epoch(), 1);
    EXPECT_TRUE(other.state_dict() == whole.state_dict());
    EXPECT_EQ(one_pass(other), one_pass(whole));
  }
}

// Whatever ranks read in an epoch, they are in the same one next: or they would walk two orders.
TEST(DataLoaderShard, CompletesAnEpochOfWhichTheRankGetsNoBatch) {
  for (int rank = 0; rank < 2; ++rank) {
    DataLoader shard = DataLoader(list(3), {.batch_size = 4})
                           .shard({.share = rank, .num_shares = 2, .even_batches = false});
    EXPECT_EQ(one_pass(shard).size(), rank == 0 ? 1 : 0);
    EXPECT_EQ(shard.epoch(), 1) << "of rank " << rank;
  }
}

TEST(DataLoaderShard, ContinuesFromTheLoadersEpoch) {
  DataLoader loader(list(4), {.batch_size = 2});
  loader.set_epoch(3);
  EXPECT_EQ(loader.shard({}).epoch(), 3);
}

// ---- State

template <typename Make>
void expect_to_go_on_after_any_batch(const Make& make) {
  auto whole = make();
  one_pass(whole);
  const Batches pass = one_pass(whole);
  const Batches next = one_pass(whole);
  for (int64_t count = 1; count <= static_cast<int64_t>(pass.size()); ++count) {
    SCOPED_TRACE(::testing::Message() << "after batch " << count);
    auto interrupted = make();
    one_pass(interrupted);
    begin_of_pass(interrupted, count);
    const json state = json::parse(interrupted.state_dict().dump());
    auto resumed = make();
    resumed.load_state_dict(state);
    if (count < static_cast<int64_t>(pass.size())) {
      EXPECT_TRUE(resumed.state_dict() == state) << "a pass that was not begun yet";
      EXPECT_EQ(resumed.epoch(), 1);
      EXPECT_EQ(one_pass(resumed), Batches(pass.begin() + count, pass.end()));
    }
    EXPECT_EQ(resumed.epoch(), 2);
    EXPECT_EQ(one_pass(resumed), next);
  }
}

TEST(DataLoaderState, GoesOnAfterAnyBatch) {
  for (int num_workers : {0, 2}) {
    for (bool drop_last : {false, true}) {
      const DataLoaderOptions options{
          .batch_size = 3, .drop_last = drop_last, .num_workers = num_workers};
      expect_to_go_on_after_any_batch([&] { return DataLoader(list(11), options); });
      expect_to_go_on_after_any_batch([&] { return DataLoader(Stream{11}, options); });
      expect_to_go_on_after_any_batch([&] {
        DataLoaderOptions shuffled = options;
        shuffled.shuffle = true;
        shuffled.generator = seeded(1);
        return DataLoader(list(11), shuffled);
      });
      expect_to_go_on_after_any_batch([&] {
        DataLoaderOptions weighted = options;
        weighted.sampler = std::make_shared<WeightedRandomSampler>(
            at::ones({11}), 10, WeightedRandomSamplerOptions{.generator = seeded(1)});
        return DataLoader(list(11), weighted);
      });
      expect_to_go_on_after_any_batch([&] {
        return DataLoader(list(11), options)
            .shard({.share = 1, .num_shares = 2, .use_seedable_sampler = true});
      });
    }
    expect_to_go_on_after_any_batch([&] {
      return DataLoader(
          list(6),
          {.batch_sampler = std::make_shared<ListBatchSampler>(Batches{{3}, {0, 1}, {2, 5, 4}}),
           .num_workers = num_workers});
    });
  }
}

TEST(DataLoaderState, IsOfOneKindOfData) {
  DataLoader map(list(6), {.batch_size = 2});
  begin_of_pass(map, 1);
  const json state = map.state_dict();
  EXPECT_THROW(DataLoader(list(7), {.batch_size = 2}).load_state_dict(state), c10::ValueError);
  EXPECT_THROW(DataLoader(list(6), {.batch_sampler =
                                        std::make_shared<ListBatchSampler>(Batches{{0}, {1, 2}})})
                   .load_state_dict(state),
               c10::ValueError);
  EXPECT_THROW(DataLoader(Stream{7}).load_state_dict(state), c10::ValueError);
  for (const json& none : {json(), json(5), json::object(), json{{"version", 2}}}) {
    EXPECT_THROW(map.load_state_dict(none), c10::ValueError) << none;
  }
  json older = state;
  older["version"] = 1;
  EXPECT_THAT(value_error_of([&] { map.load_state_dict(older); }),
              HasSubstr("of version 1, of an older release, and this software reads version 2"));
}

TEST(DataLoaderState, IsOfOneOrder) {
  using Loader = decltype(DataLoader(list(6)));
  const auto with_sampler = [](std::shared_ptr<Sampler> sampler) {
    return DataLoader(list(6), {.batch_size = 2, .sampler = std::move(sampler)});
  };
  std::vector<std::pair<std::string, std::function<Loader()>>> orders;
  orders.emplace_back("sequential", [] { return DataLoader(list(6), {.batch_size = 2}); });
  orders.emplace_back("random", [] {
    return DataLoader(list(6), {.batch_size = 2, .shuffle = true, .generator = seeded(1)});
  });
  orders.emplace_back("seeded", [] {
    return DataLoader(list(6), {.batch_size = 2, .shuffle = true})
        .shard({.use_seedable_sampler = true, .data_seed = 1});
  });
  orders.emplace_back("weighted", [&] {
    return with_sampler(std::make_shared<WeightedRandomSampler>(
        at::ones({6}), 6, WeightedRandomSamplerOptions{.generator = seeded(1)}));
  });
  for (const auto& [saved, make] : orders) {
    const Loader loader = make();
    begin_of_pass(loader, 1);
    const json state = loader.state_dict();
    EXPECT_EQ(state.at("order"), saved);
    for (const auto& [here, make_other] : orders) {
      Loader other = make_other();
      const std::string error = value_error_of([&] { other.load_state_dict(state); });
      if (here == saved) {
        EXPECT_EQ(error, "no error") << here;
      } else {
        EXPECT_THAT(error, HasSubstr("whose order is " + saved + ", here it is " + here));
      }
    }
  }
}

// A position is a sample, so that batches may become larger or smaller.
TEST(DataLoaderState, GoesOnBehindTheSampleWithAnotherBatchSize) {
  const auto expect_rest = [](const auto& data) {
    DataLoader loader(data, {.batch_size = 2});
    begin_of_pass(loader, 2);
    DataLoader resumed(data, {.batch_size = 3});
    resumed.load_state_dict(json::parse(loader.state_dict().dump()));
    EXPECT_EQ(one_pass(resumed), (Batches{{4, 5, 6}, {7, 8, 9}}));
    EXPECT_EQ(one_pass(resumed), (Batches{{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9}}));
  };
  expect_rest(list(10));
  expect_rest(Stream{10});
  expect_rest(StatefulStream{{10}});
}

// Two shares took a round of four of 10 samples; three shares take the rest in one round.
TEST(DataLoaderState, LeavesTheRemainderOfWhatIsStillToCome) {
  const DatasetFacts facts{.size = 10};
  const LoaderCore core(facts, {.batch_size = 2});
  auto loader = DataLoader(list(10), {.batch_size = 2}).shard({.num_shares = 2});
  begin_of_pass(loader, 1);
  const std::shared_ptr<LoaderCore> resumed = core.shard({.num_shares = 3});
  resumed->load_state_dict(loader.state_dict());
  const internal::PassStart rest = resumed->begin_pass(0);
  EXPECT_EQ(rest.taken, 4);
  EXPECT_EQ(resumed->remainder(rest), 0);
  EXPECT_EQ(resumed->remainder({}), 4) << "of a whole pass";
}

TEST(DataLoaderState, OfAStreamThatShardsItselfIsItsShares) {
  const LoaderCore core({.size = 10, .is_stream = true, .num_shards = 4}, {.batch_size = 2});
  const auto share = [&](int number, int count) {
    return core.shard({.share = number, .num_shares = count, .dispatch_batches = false});
  };
  const std::shared_ptr<LoaderCore> loader = share(1, 2);
  ASSERT_EQ(loader->mode(), LoaderMode::kSelfShard);
  loader->begin_pass(0);
  internal::BatchPosition position;
  position.taken = 2;
  loader->count_batch(position);
  const json state = loader->state_dict();
  EXPECT_EQ(value_error_of([&] { share(1, 2)->load_state_dict(state); }), "no error");
  EXPECT_THAT(value_error_of([&] { share(0, 2)->load_state_dict(state); }),
              HasSubstr("rank 0 has share 0, the state is of share 1"));
  EXPECT_THAT(value_error_of([&] { share(1, 4)->load_state_dict(state); }),
              HasSubstr("is of 2 data shares, here are 4"));
  // A loader between passes has none.
  const json before = share(0, 2)->state_dict();
  EXPECT_EQ(value_error_of([&] { share(3, 4)->load_state_dict(before); }), "no error");
}

TEST(DataLoaderState, LetsAStreamJumpThatCanTellWhereItStands) {
  DataLoader loader(StatefulStream{{1000}}, {.batch_size = 2});
  begin_of_pass(loader, 400);
  const json state = json::parse(loader.state_dict().dump());
  DataLoader resumed(StatefulStream{{1000}}, {.batch_size = 2});
  resumed.load_state_dict(state);
  EXPECT_EQ(begin_of_pass(resumed, 1), (Batches{{800, 801}}));
  EXPECT_LT(resumed.dataset().read, 10);
  // Ahead of the loop the stream stands elsewhere than the loop does.
  DataLoader ahead(StatefulStream{{1000}}, {.batch_size = 2, .num_workers = 2});
  begin_of_pass(ahead, 400);
  EXPECT_EQ(ahead.state_dict().at("dataset"), state.at("dataset"));
}

// Every rank's loader stops after a batch; other ranks, more or fewer, visit the rest once.
template <typename Data>
void expect_the_rest_for_other_ranks(const Data& data, const DataLoaderOptions& options,
                                     bool split) {
  for (int before : {1, 2, 3}) {
    for (int after : {1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << before << " ranks, then " << after);
      auto share = [&](int rank, int world_size) {
        return DataLoader(data, options)
            .shard({.share = rank,
                    .num_shares = world_size,
                    .split_batches = split,
                    .dispatch_batches = false,
                    .use_seedable_sampler = true,
                    .data_seed = 1});
      };
      Values seen;
      auto see = [&seen](const Batches& batches) {
        for (const Values& batch : batches) seen.insert(seen.end(), batch.begin(), batch.end());
      };
      json state;
      for (int rank = 0; rank < before; ++rank) {
        auto loader = share(rank, before);
        see(begin_of_pass(loader, 1));
        json own = loader.state_dict();
        // The seed of the workers is each rank's own affair.
        if (rank > 0) own["base_seed"] = state.at("base_seed");
        EXPECT_TRUE(rank == 0 || own == state) << "ranks do not agree";
        state = std::move(own);
      }
      for (int rank = 0; rank < after; ++rank) {
        auto loader = share(rank, after);
        loader.load_state_dict(json::parse(state.dump()));
        see(one_pass(loader));
        EXPECT_EQ(loader.epoch(), 1);
      }
      // 42 samples less a round are a whole number of rounds: nothing is padded.
      EXPECT_THAT(seen, ::testing::UnorderedElementsAreArray(list(42)));
    }
  }
}

TEST(DataLoaderState, GoesOnWithMoreOrFewerRanks) {
  // Rounds of 1, 2 or 3, or of 6: they divide whatever is left.
  for (bool shuffle : {false, true}) {
    expect_the_rest_for_other_ranks(list(42), {.batch_size = 6, .shuffle = shuffle}, true);
  }
  expect_the_rest_for_other_ranks(Stream{42}, {.batch_size = 6}, true);
  expect_the_rest_for_other_ranks(StatefulStream{{42}}, {.batch_size = 6}, true);
}

// What is loaded before prepare() counts for the loader that it makes.
TEST(DataLoaderState, GoesOnInAShareAndInBatchesOfAnotherSize) {
  DataLoader loader(list(8), {.batch_size = 2});
  loader.set_epoch(3);
  begin_of_pass(loader, 1);
  DataLoader resumed(list(8), {.batch_size = 2});
  resumed.load_state_dict(loader.state_dict());
  const DataLoader share = resumed.shard({.num_shares = 2});
  EXPECT_EQ(share.epoch(), 3);
  EXPECT_EQ(one_pass(share), (Batches{{2, 3}, {6, 7}}));
  const DataLoader larger = resumed.with_batch_size(3);
  EXPECT_EQ(larger.epoch(), 3);
  EXPECT_EQ(one_pass(larger), (Batches{{2, 3, 4}, {5, 6, 7}}));
}

// With the position the order of the pass is forgotten: the next one is the generator's own.
TEST(DataLoaderState, LeavesNoOrderToAnotherEpoch) {
  const auto shuffled = [](uint64_t seed) {
    return DataLoader(list(20), {.batch_size = 4, .shuffle = true, .generator = seeded(seed)});
  };
  DataLoader loader = shuffled(1), resumed = shuffled(2);
  begin_of_pass(loader, 2);
  resumed.load_state_dict(loader.state_dict());
  resumed.set_epoch(5);
  EXPECT_EQ(one_pass(resumed), one_pass(shuffled(2)));
}

TEST(DataLoaderState, BelongsToItsEpoch) {
  DataLoader loader(list(6), {.batch_size = 2});
  begin_of_pass(loader, 2);
  const json state = loader.state_dict();
  DataLoader same(list(6), {.batch_size = 2});
  same.load_state_dict(state);
  same.set_epoch(0);
  EXPECT_EQ(one_pass(same), (Batches{{4, 5}}));
  DataLoader other(list(6), {.batch_size = 2});
  other.load_state_dict(state);
  other.set_epoch(3);
  EXPECT_EQ(one_pass(other), (Batches{{0, 1}, {2, 3}, {4, 5}}));
}

// Both would leave out twice as many batches as were trained with.
TEST(DataLoaderState, IsNotSkippedFromAsWell) {
  DataLoader loader(list(8), {.batch_size = 2});
  begin_of_pass(loader, 1);
  DataLoader resumed(list(8), {.batch_size = 2});
  resumed.load_state_dict(loader.state_dict());
  EXPECT_THAT(
      value_error_of([&] { one_pass(resumed.skip_first(2)); }),
      ::testing::AllOf(HasSubstr("skip_first_batches(2)"), HasSubstr("behind batch 1 of epoch 0"),
                       HasSubstr("use_stateful_dataloader = false")));
  // Nothing was begun: the position is still there.
  EXPECT_EQ(one_pass(resumed.skip_first(0)), (Batches{{2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(resumed.epoch(), 1);
  EXPECT_EQ(one_pass(resumed.skip_first(1)), (Batches{{2, 3}, {4, 5}, {6, 7}})) << "a new pass";
}

TEST(DataLoaderState, BetweenPassesLeavesRoomForASkip) {
  DataLoader loader(list(8), {.batch_size = 2});
  one_pass(loader);
  DataLoader resumed(list(8), {.batch_size = 2});
  resumed.load_state_dict(loader.state_dict());
  EXPECT_EQ(one_pass(resumed.skip_first(3)), (Batches{{6, 7}}));
  // A position that another epoch replaces is none.
  begin_of_pass(loader, 2);
  resumed.load_state_dict(loader.state_dict());
  resumed.set_epoch(7);
  EXPECT_EQ(one_pass(resumed.skip_first(3)), (Batches{{6, 7}}));
}

}  // namespace
}  // namespace accelerate
