#include "accelerate/data/data_loader.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "accelerate/data/tensor_dataset.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/testing/loader_passes.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

using NumbersIterator = DataLoader<TensorDataset<1>>::Iterator;
static_assert(std::input_iterator<NumbersIterator>);
static_assert(std::sentinel_for<std::default_sentinel_t, NumbersIterator>);
static_assert(std::is_nothrow_move_constructible_v<NumbersIterator>);
static_assert(!std::is_copy_constructible_v<NumbersIterator>);

// Sample i is the number i.
TensorDataset<1> numbers(int64_t size) { return make_tensor_dataset(at::arange(size)); }

void seed_default(uint64_t seed) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(seed);
}

// Fails when asked for sample `broken`.
struct BrokenDataset {
  int64_t broken;
  int64_t size() const { return 6; }
  at::Tensor get_batch(const at::Tensor& indices) const {
    for (int64_t index : values(indices)) {
      if (index == broken) throw std::runtime_error("broken sample");
    }
    return indices;
  }
};

struct BrokenItems {
  int64_t broken;
  size_t size() const { return 6; }
  int64_t get(size_t index) const {
    if (static_cast<int64_t>(index) == broken) throw std::runtime_error("broken sample");
    return static_cast<int64_t>(index);
  }
};

struct Stream {
  int64_t count = 0;
  int64_t broken = -1;
  int64_t at = 0;

  std::optional<int64_t> next() {
    if (at == broken) throw std::runtime_error("broken sample");
    return at < count ? std::optional(at++) : std::nullopt;
  }
  void reset() { at = 0; }
  int64_t size() const { return count; }
};

// ---- What can be read

TEST(DataLoader, BindsTheTensorsOfABatch) {
  const at::Tensor features = at::arange(10).reshape({5, 2});
  const at::Tensor labels = at::arange(5);
  Batches shapes;
  for (auto& [x, y] : DataLoader(make_tensor_dataset(features, labels), {.batch_size = 2})) {
    EXPECT_EQ(x.size(1), 2);
    shapes.push_back({x.size(0), y.size(0)});
  }
  EXPECT_THAT(shapes, ElementsAre(Values{2, 2}, Values{2, 2}, Values{1, 1}));
}

TEST(DataLoader, ReadsPlainVectors) {
  EXPECT_THAT(one_pass(DataLoader(list(5), {.batch_size = 2})),
              ElementsAre(Values{0, 1}, Values{2, 3}, Values{4}));
  std::vector<std::vector<std::string>> names;
  for (auto& batch : DataLoader(std::vector<std::string>{"a", "b", "c"}, {.batch_size = 2})) {
    names.push_back(batch);
  }
  EXPECT_THAT(names, ElementsAre(ElementsAre("a", "b"), ElementsAre("c")));
  using Pair = std::pair<at::Tensor, std::string>;
  const std::vector<Pair> pairs{{at::zeros({2}), "x"}, {at::ones({2}), "y"}};
  for (auto& [tensors, texts] : DataLoader(pairs, {.batch_size = 2})) {
    EXPECT_TRUE(at::equal(tensors, at::stack({at::zeros({2}), at::ones({2})})));
    EXPECT_THAT(texts, ElementsAre("x", "y"));
  }
}

TEST(DataLoader, ReadsVectorsOfBooleans) {
  DataLoader loader(std::vector<bool>{true, false, true}, {.batch_size = 3});
  EXPECT_TRUE(at::equal(*loader.begin(), at::tensor({1, 0, 1}).to(at::kBool)));
}

TEST(DataLoader, ReadsItemDatasets) {
  EXPECT_THAT(one_pass(DataLoader(BrokenItems{-1}, {.batch_size = 4})),
              ElementsAre(Values{0, 1, 2, 3}, Values{4, 5}));
}

TEST(DataLoader, ReadsStreams) {
  for (int num_workers : {0, 2}) {
    DataLoader loader(Stream{5}, {.batch_size = 2, .num_workers = num_workers});
    for (int pass = 0; pass < 2; ++pass) {
      EXPECT_THAT(one_pass(loader), ElementsAre(Values{0, 1}, Values{2, 3}, Values{4}));
    }
    EXPECT_EQ(loader.epoch(), 2);
    EXPECT_EQ(loader.size(), 3);
  }
  EXPECT_THAT(one_pass(DataLoader(Stream{5}, {.batch_size = 2, .drop_last = true})),
              ElementsAre(Values{0, 1}, Values{2, 3}));
}

TEST(DataLoader, TakesACollateCallable) {
  auto sum = [](const Values& samples) {
    int64_t total = 0;
    for (int64_t sample : samples) total += sample;
    return total;
  };
  Values sums;
  for (int64_t total : DataLoader(list(5), {.batch_size = 2}, sum)) sums.push_back(total);
  for (int64_t total : DataLoader(Stream{5}, {.batch_size = 2}, sum)) sums.push_back(total);
  EXPECT_THAT(sums, ElementsAre(1, 5, 4, 1, 5, 4));
  // It also gets what get_batch gives.
  auto negated = [](const std::tuple<at::Tensor>& batch) { return -std::get<0>(batch); };
  EXPECT_THAT(one_pass(DataLoader(numbers(3), {.batch_size = 2}, negated)),
              ElementsAre(Values{0, -1}, Values{-2}));
}

TEST(DataLoader, CountsTheBatchesItGives) {
  for (bool drop_last : {false, true}) {
    DataLoader loader(numbers(7), {.batch_size = 3, .drop_last = drop_last});
    EXPECT_EQ(loader.size(), drop_last ? 2 : 3);
    EXPECT_EQ(one_pass(loader).size(), loader.size());
    EXPECT_EQ(loader.drop_last(), drop_last);
    EXPECT_EQ(loader.total_dataset_length(), 7);
    EXPECT_EQ(loader.total_batch_size(), 3);
  }
}

// ---- The order

struct TorchLoader {
  int64_t n;
  int64_t batch_size;
  bool drop_last;
  uint64_t torch_seed;
  std::optional<uint64_t> generator_seed;
  std::vector<Batches> epochs;
  uint64_t next_int64;
};

// Recorded from torch.utils.data.DataLoader(range(n), shuffle=True); `next_int64` is what the
// default generator draws afterwards, so it tells how much was drawn from it.
TEST(DataLoader, ShufflesAsTorchDoes) {
  const std::vector<TorchLoader> cases{
      // rnd-0324
      {4, 5, false, 42, {}, {{{0, 2, 3, 1}}, {{2, 3, 1, 0}}, {{0, 2, 1, 3}}}, 1071453510346823114},
      // rnd-0310
      {4,
       2,
       false,
       0,
       {},
       {{{2, 1}, {3, 0}}, {{0, 1}, {3, 2}}, {{1, 0}, {3, 2}}},
       8072059273656089175},
      // rnd-0323
      {9,
       4,
       true,
       42,
       1234,
       {{{3, 6, 2, 7}, {1, 4, 0, 8}}, {{3, 1, 4, 0}, {8, 5, 7, 2}}, {{1, 4, 0, 6}, {3, 2, 7, 5}}},
       6909045637428952499},
      // rnd-0303
      {10,
       4,
       false,
       1234,
       1234,
       {{{6, 3, 0, 4}, {1, 5, 9, 7}, {2, 8}},
        {{0, 4, 7, 8}, {5, 9, 3, 2}, {1, 6}},
        {{2, 0, 5, 7}, {1, 4, 9, 3}, {6, 8}}},
       3532910284440527571},
  };
  for (const TorchLoader& torch : cases) {
    for (int num_workers : {0, 2}) {
      SCOPED_TRACE(testing::Message() << torch.n << " samples, " << num_workers << " workers");
      seed_default(torch.torch_seed);
      DataLoaderOptions options{.batch_size = torch.batch_size,
                                .shuffle = true,
                                .drop_last = torch.drop_last,
                                .num_workers = num_workers};
      if (torch.generator_seed) options.generator = seeded(*torch.generator_seed);
      DataLoader loader(list(torch.n), options);
      for (const Batches& epoch : torch.epochs) EXPECT_EQ(one_pass(loader), epoch);
      EXPECT_EQ(draw_seed(), torch.next_int64);
    }
  }
}

TEST(DataLoader, TakesASampler) {
  auto subset = std::make_shared<SubsetRandomSampler>(at::tensor({7, 3, 5}, at::kLong), seeded(1));
  DataLoader loader(numbers(9), {.batch_size = 2, .sampler = subset});
  EXPECT_EQ(loader.size(), 2);
  EXPECT_EQ(loader.total_dataset_length(), 9);
  const Batches batches = one_pass(loader);
  ASSERT_EQ(batches.size(), 2);
  EXPECT_THAT((Values{batches[0][0], batches[0][1], batches[1][0]}), UnorderedElementsAre(3, 5, 7));
}

TEST(DataLoader, TakesABatchSampler) {
  const Batches given{{4, 0}, {1, 2, 3}, {4}};
  auto sampler = std::make_shared<ListBatchSampler>(given);
  for (int num_workers : {0, 2}) {
    DataLoader loader(numbers(5), {.batch_sampler = sampler, .num_workers = num_workers});
    EXPECT_EQ(loader.size(), 3);
    EXPECT_EQ(one_pass(loader), given);
    EXPECT_THROW(loader.total_batch_size(), c10::ValueError);
  }
}

TEST(DataLoader, HasBatchesOfAnotherSizeOverTheSameSamples) {
  const DataLoader loader(numbers(5), {.batch_size = 1, .drop_last = true});
  EXPECT_EQ(one_pass(loader.with_batch_size(2)), (Batches{{0, 1}, {2, 3}}));
  EXPECT_EQ(loader.size(), 5);
  EXPECT_THROW(loader.with_batch_size(0), c10::ValueError);
  auto sampler = std::make_shared<ListBatchSampler>(Batches{{0, 1}});
  const DataLoader given(numbers(5), {.batch_sampler = sampler});
  EXPECT_THROW(given.with_batch_size(2), c10::ValueError);
}

// A batch of no samples has no structure that collating could give it.
TEST(DataLoader, ComplainsAboutABatchWithoutSamples) {
  auto sampler = std::make_shared<ListBatchSampler>(Batches{{0}, {}});
  DataLoader loader(std::vector<at::Tensor>{at::ones({1})}, {.batch_sampler = sampler});
  auto iterator = loader.begin();
  EXPECT_THROW(++iterator, std::exception);
}

TEST(DataLoader, RefusesOptionsThatContradict) {
  auto sampler = std::make_shared<SequentialSampler>(4);
  auto batches = std::make_shared<ListBatchSampler>(Batches{{0, 1}});
  for (const DataLoaderOptions& options :
       std::vector<DataLoaderOptions>{{.batch_size = 0},
                                      {.shuffle = true, .sampler = sampler},
                                      {.batch_size = 2, .batch_sampler = batches},
                                      {.shuffle = true, .batch_sampler = batches},
                                      {.drop_last = true, .batch_sampler = batches},
                                      {.sampler = sampler, .batch_sampler = batches},
                                      {.num_workers = -1},
                                      {.prefetch_factor = 0},
                                      {.timeout = absl::Seconds(-1)}}) {
    EXPECT_THROW(DataLoader(numbers(4), options), c10::ValueError);
  }
  for (const DataLoaderOptions& options : std::vector<DataLoaderOptions>{
           {.shuffle = true}, {.sampler = sampler}, {.batch_sampler = batches}}) {
    EXPECT_THROW(DataLoader(Stream{4}, options), c10::ValueError);
  }
  EXPECT_THROW(DataLoader(numbers(0), {.shuffle = true}), c10::ValueError);
}

// ---- Workers

TEST(DataLoader, GivesTheSameBatchesWithWorkers) {
  for (int num_workers : {1, 3}) {
    for (int prefetch_factor : {1, 2}) {
      DataLoader alone(numbers(23), {.batch_size = 2, .shuffle = true, .generator = seeded(4)});
      DataLoader loader(numbers(23), {.batch_size = 2,
                                      .shuffle = true,
                                      .generator = seeded(4),
                                      .num_workers = num_workers,
                                      .prefetch_factor = prefetch_factor});
      for (int pass = 0; pass < 2; ++pass) EXPECT_EQ(one_pass(loader), one_pass(alone));
      EXPECT_EQ(begin_of_pass(loader, 3), begin_of_pass(alone, 3));
    }
  }
}

TEST(DataLoader, CallsTheWorkerInitOncePerWorkerAndPass) {
  std::mutex mutex;
  std::multiset<int> inits;
  DataLoader loader(numbers(8), {.num_workers = 2, .worker_init = [&](const WorkerInfo& info) {
                                   std::lock_guard<std::mutex> lock(mutex);
                                   inits.insert(info.id);
                                 }});
  one_pass(loader);
  EXPECT_THAT(inits, ElementsAre(0, 1));
  one_pass(loader);
  EXPECT_THAT(inits, ElementsAre(0, 0, 1, 1));
}

TEST(DataLoader, GivesAStreamOneThread) {
  std::atomic<int> inits = 0;
  DataLoader loader(Stream{7}, {.num_workers = 3, .worker_init = [&](const WorkerInfo& info) {
                                  EXPECT_EQ(info.num_workers, 1);
                                  ++inits;
                                }});
  one_pass(loader);
  EXPECT_EQ(inits, 1);
}

TEST(DataLoader, PinsNothingWithoutADevice) {
  DataLoader loader(numbers(4), {.batch_size = 4, .pin_memory = true});
  EXPECT_THAT(one_pass(loader), ElementsAre(Values{0, 1, 2, 3}));
}

// The indices belong to the dataset if it keeps them.
TEST(DataLoader, LeavesIndicesThatTheDatasetKept) {
  struct Keeps {
    std::vector<at::Tensor> kept;
    int64_t size() const { return 6; }
    at::Tensor get_batch(const at::Tensor& indices) {
      kept.push_back(indices);
      kept.push_back(indices.slice(0, 1));
      return indices.slice(0, 0, 1);
    }
  };
  for (int num_workers : {0, 1}) {
    DataLoader loader(Keeps{}, {.batch_size = 2, .num_workers = num_workers});
    EXPECT_THAT(one_pass(loader), ElementsAre(Values{0}, Values{2}, Values{4}));
    const std::vector<at::Tensor>& kept = loader.dataset().kept;
    ASSERT_EQ(kept.size(), 6);
    EXPECT_THAT(values(kept[0]), ElementsAre(0, 1));
    EXPECT_THAT(values(kept[3].contiguous()), ElementsAre(3));
  }
}

// ---- Epochs and iterators

TEST(DataLoader, AdvancesTheEpochOnCompletePassesOnly) {
  for (int num_workers : {0, 2}) {
    DataLoader loader(numbers(8), {.batch_size = 2, .num_workers = num_workers});
    begin_of_pass(loader, 1);
    EXPECT_EQ(loader.epoch(), 0);
    one_pass(loader);
    EXPECT_EQ(loader.epoch(), 1);
    begin_of_pass(loader, 4);
    EXPECT_EQ(loader.epoch(), 1) << "the loop was left in the last batch";
  }
}

TEST(DataLoader, RepeatsTheEpochOfASeedableSamplerAfterALoopLeftEarly) {
  auto sampler =
      std::make_shared<SeedableRandomSampler>(8, SeedableRandomSamplerOptions{.data_seed = 3});
  DataLoader loader(numbers(8), {.batch_size = 2, .sampler = sampler});
  const Batches first = begin_of_pass(loader, 2);
  const Batches again = one_pass(loader);
  EXPECT_EQ(Batches(again.begin(), again.begin() + 2), first);
  EXPECT_EQ(sampler->epoch(), 1);
  loader.set_epoch(0);
  EXPECT_EQ(one_pass(loader), again);
  EXPECT_NE(one_pass(loader), again);
}

struct ToldEpochs : BrokenDataset {
  Values epochs;
  void set_epoch(int64_t epoch) { epochs.push_back(epoch); }
};

struct ToldStream : Stream {
  Values epochs;
  void set_epoch(int64_t epoch) { epochs.push_back(epoch); }
};

TEST(DataLoader, TellsSamplerAndDatasetTheEpochBeforeEachPass) {
  auto sampler = std::make_shared<SeedableRandomSampler>(6, SeedableRandomSamplerOptions{});
  DataLoader map(ToldEpochs{{-1}, {}}, {.sampler = sampler});
  one_pass(map);
  map.set_epoch(5);
  begin_of_pass(map, 1);
  EXPECT_EQ(sampler->epoch(), 5);
  one_pass(map);
  EXPECT_THAT(map.dataset().epochs, ElementsAre(0, 5, 5));
  DataLoader stream(ToldStream{{2}, {}}, {});
  one_pass(stream);
  stream.set_epoch(7);
  one_pass(stream);
  EXPECT_THAT(stream.dataset().epochs, ElementsAre(0, 7));
}

TEST(DataLoader, SharesItsEpochWithCopies) {
  DataLoader loader(numbers(4), {.batch_size = 2});
  DataLoader copy = loader;
  one_pass(copy);
  EXPECT_EQ(loader.epoch(), 1);
  EXPECT_EQ(&loader.dataset(), &copy.dataset());
}

TEST(DataLoader, HasIteratorsThatMove) {
  DataLoader loader(numbers(3));
  auto iterator = loader.begin();
  auto moved = std::move(iterator);
  EXPECT_EQ(values(*moved), Values{0});
  ++moved;
  iterator = std::move(moved);
  EXPECT_EQ(std::get<0>(*iterator).item<int64_t>(), 1);
  iterator++;
  EXPECT_EQ(values(*iterator.operator->()), Values{2});
  EXPECT_FALSE(iterator == loader.end());
  ++iterator;
  EXPECT_TRUE(iterator == loader.end());
  EXPECT_EQ(loader.epoch(), 1);
}

TEST(DataLoader, OutlivesItsHandle) {
  std::optional<DataLoader<TensorDataset<1>>> loader(std::in_place, numbers(3));
  auto iterator = loader->begin();
  loader.reset();
  ++iterator;
  EXPECT_EQ(values(*iterator), Values{1});
}

// ---- skip_first

TEST(DataLoader, LeavesOutTheFirstBatchesUnread) {
  for (int num_workers : {0, 2}) {
    DataLoader loader(BrokenItems{1}, {.batch_size = 2, .num_workers = num_workers});
    const auto rest = skip_first_batches(loader, 1);
    EXPECT_EQ(rest.size(), 2);
    EXPECT_THAT(one_pass(rest), ElementsAre(Values{2, 3}, Values{4, 5}));
    EXPECT_EQ(loader.epoch(), 1);
    EXPECT_EQ(rest.skip_first(1).size(), 1);
    EXPECT_THAT(one_pass(rest.skip_first(1)), ElementsAre(Values{4, 5}));
  }
  EXPECT_EQ(skip_first_batches(DataLoader(numbers(4))).size(), DataLoader(numbers(4)).size());
  EXPECT_THAT(one_pass(DataLoader(Stream{5}, {.batch_size = 2}).skip_first(2)),
              ElementsAre(Values{4}));
  EXPECT_THROW(DataLoader(numbers(4)).skip_first(-1), c10::ValueError);
}

// ---- Errors

TEST(DataLoader, TellsWhereTheDatasetFailed) {
  for (int num_workers : {0, 1}) {
    DataLoader loader(BrokenItems{3}, {.batch_size = 2, .num_workers = num_workers});
    try {
      one_pass(loader);
      FAIL() << "no exception";
    } catch (const DatasetError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0, batch 1"), HasSubstr("sample 3"),
                                      HasSubstr("broken sample")));
      EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error);
    }
  }
}

TEST(DataLoader, LeavesAC10ErrorWhatItIs) {
  DataLoader loader(std::vector<at::Tensor>{at::ones({2}), at::ones({3})}, {.batch_size = 2});
  EXPECT_THAT(value_error_of([&] { loader.begin(); }),
              AllOf(HasSubstr("batch 0"), HasSubstr("[3]")));
}

// Whatever was read before the failure is handed out.
TEST(DataLoader, GivesTheBatchesBeforeOneThatFails) {
  auto good_batches = [](const auto& loader) {
    int count = 0;
    EXPECT_THROW(for ([[maybe_unused]] auto& batch : loader)++ count, DatasetError);
    EXPECT_EQ(loader.epoch(), 0);
    return count;
  };
  for (int num_workers : {0, 2}) {
    const DataLoaderOptions options{.batch_size = 2, .num_workers = num_workers};
    EXPECT_EQ(good_batches(DataLoader(BrokenDataset{4}, options)), 2);
    EXPECT_EQ(good_batches(DataLoader(BrokenItems{4}, options)), 2);
    EXPECT_EQ(good_batches(DataLoader(Stream{6, 4}, options)), 2) << "of a stream";
  }
}

TEST(DataLoader, CanBeIteratedAgainAfterAFailure) {
  for (int num_workers : {0, 2}) {
    DataLoader loader(Stream{6, 4}, {.batch_size = 2, .num_workers = num_workers});
    EXPECT_THROW(one_pass(loader), DatasetError);
    loader.dataset().broken = -1;
    EXPECT_THAT(one_pass(loader), ElementsAre(Values{0, 1}, Values{2, 3}, Values{4, 5}));
  }
}

TEST(DataLoader, EndsAnIteratorThatFailed) {
  DataLoader loader(BrokenDataset{2}, {.batch_size = 2});
  auto iterator = loader.begin();
  EXPECT_THROW(++iterator, DatasetError);
  EXPECT_TRUE(iterator == loader.end());
}

// ---- The share of a rank

TEST(DataLoaderShard, GivesEachRankItsBatchesOfOneSharedOrder) {
  DataLoader loader(numbers(12), {.batch_size = 2, .shuffle = true});
  Values seen;
  for (int rank = 0; rank < 3; ++rank) {
    DataLoader shard = loader.shard(
        {.share = rank, .num_shares = 3, .use_seedable_sampler = true, .data_seed = 9});
    EXPECT_TRUE(shard.is_prepared());
    EXPECT_EQ(shard.size(), 2);
    EXPECT_EQ(shard.total_batch_size(), 6);
    for (const Values& batch : one_pass(shard)) seen.insert(seen.end(), batch.begin(), batch.end());
  }
  EXPECT_THAT(seen, UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_FALSE(loader.is_prepared());
  EXPECT_EQ(loader.epoch(), 0) << "the shards count their own epochs";
}

TEST(DataLoaderShard, SplitsBatchesWhenAsked) {
  DataLoader loader(numbers(5), {.batch_size = 4});
  DataLoader shard = loader.shard({.share = 1, .num_shares = 2, .split_batches = true});
  EXPECT_THAT(one_pass(shard), ElementsAre(Values{2, 3}, Values{1, 2}));
  EXPECT_EQ(shard.total_batch_size(), 4);
  EXPECT_EQ(shard.batch_size(), 4);
}

TEST(DataLoaderShard, LeavesTheBatchesOfARankAloneAsTheyAre) {
  GradientState state;
  DataLoader shard = DataLoader(numbers(5), {.batch_size = 2}).shard({.gradient_state = &state});
  EXPECT_TRUE(shard.is_prepared());
  Batches batches;
  for (auto& [batch] : shard) {
    EXPECT_TRUE(state.in_dataloader());
    EXPECT_EQ(state.remainder(), 1);
    batches.push_back(values(batch));
  }
  EXPECT_THAT(batches, ElementsAre(Values{0, 1}, Values{2, 3}, Values{4}));
  EXPECT_THAT(one_pass(DataLoader(Stream{3}, {.batch_size = 2}).shard({})),
              ElementsAre(Values{0, 1}, Values{2}));
}

TEST(DataLoaderShard, TellsTheGradientStateWhichBatchIsLast) {
  for (int num_workers : {0, 2}) {
    GradientState state;
    DataLoader shard = DataLoader(numbers(10), {.batch_size = 2, .num_workers = num_workers})
                           .shard({.share = 1, .num_shares = 3, .gradient_state = &state});
    std::vector<bool> ends;
    for ([[maybe_unused]] auto& batch : shard) {
      EXPECT_EQ(state.remainder(), 4);
      ends.push_back(state.end_of_dataloader());
    }
    EXPECT_THAT(ends, ElementsAre(false, true));
    EXPECT_FALSE(state.in_dataloader());
    EXPECT_FALSE(state.end_of_dataloader());
  }
}

TEST(DataLoaderShard, DoesNotKnowTheRemainderOfADroppedRound) {
  GradientState state;
  DataLoader loader(numbers(10), {.batch_size = 2, .drop_last = true});
  DataLoader shard = loader.shard({.num_shares = 3, .gradient_state = &state});
  for ([[maybe_unused]] auto& batch : shard) {
    EXPECT_EQ(state.remainder(), GradientState::kUnknownRemainder);
  }
}

TEST(DataLoaderShard, AnswersForTheInnermostLoop) {
  GradientState state;
  DataLoader train = DataLoader(numbers(4), {.batch_size = 2}).shard({.gradient_state = &state});
  DataLoader eval = DataLoader(numbers(3), {.batch_size = 2}).shard({.gradient_state = &state});
  for ([[maybe_unused]] auto& batch : train) {
    const bool train_ends = state.end_of_dataloader();
    for ([[maybe_unused]] auto& eval_batch : eval) EXPECT_EQ(state.remainder(), 1);
    EXPECT_EQ(state.end_of_dataloader(), train_ends);
    EXPECT_EQ(state.remainder(), 0);
  }
}

TEST(DataLoaderShard, UnregistersHoweverTheLoopEnds) {
  GradientState state;
  DataLoader whole = DataLoader(numbers(4), {.batch_size = 2}).shard({.gradient_state = &state});
  begin_of_pass(whole, 1);
  EXPECT_FALSE(state.in_dataloader());
  EXPECT_EQ(whole.epoch(), 0);
  for (int64_t broken : {0, 5}) {
    DataLoader shard =
        DataLoader(BrokenDataset{broken}, {.batch_size = 2}).shard({.gradient_state = &state});
    int batches = 0;
    EXPECT_THROW(for ([[maybe_unused]] auto& batch : shard)++ batches, DatasetError);
    EXPECT_EQ(batches, broken / 2);
    EXPECT_FALSE(state.in_dataloader());
    EXPECT_EQ(shard.epoch(), 0);
  }
  DataLoader failing =
      DataLoader(BrokenDataset{2}, {.batch_size = 2}).shard({.gradient_state = &state});
  auto iterator = failing.begin();
  EXPECT_THROW(++iterator, DatasetError);
  EXPECT_TRUE(iterator == failing.end());
  EXPECT_FALSE(state.in_dataloader()) << "the iterator lives, but its pass is over";
}

TEST(DataLoaderShard, GivesNothingForAnEmptyDataset) {
  GradientState state;
  DataLoader loader(numbers(0), {.batch_size = 2});
  EXPECT_THAT(one_pass(loader), IsEmpty());
  for (int world_size : {1, 2}) {
    DataLoader shard = loader.shard({.num_shares = world_size, .gradient_state = &state});
    EXPECT_THAT(one_pass(shard), IsEmpty());
    EXPECT_EQ(shard.epoch(), 0);
    EXPECT_FALSE(state.in_dataloader());
  }
}

TEST(DataLoaderShard, MovesBatchesToItsDeviceOnlyWhenAsked) {
  DataLoader loader(numbers(6), {.batch_size = 2});
  for (bool placed : {false, true}) {
    for (int prefetch : {0, 2, 9}) {
      int batches = 0;
      for (auto& [batch] : loader.shard(
               {.device = c10::kMeta, .device_placement = placed, .device_prefetch = prefetch})) {
        EXPECT_EQ(batch.is_meta(), placed);
        ++batches;
      }
      EXPECT_EQ(batches, 3);
    }
  }
}

// Which thread reads.
struct ReadersDataset {
  int64_t size() const { return 4; }
  std::tuple<at::Tensor> get(int64_t) {
    readers->push_back(std::this_thread::get_id());
    return {at::zeros({1})};
  }
  std::vector<std::thread::id>* readers;
};

TEST(DataLoaderShard, ReadsInTheBackgroundForADeviceThatIsFedAhead) {
  for (int prefetch : {0, 2}) {
    std::vector<std::thread::id> readers;
    DataLoader loader(ReadersDataset{&readers}, {.batch_size = 1});
    DataLoader shard = loader.shard({.device = c10::kMeta, .device_prefetch = prefetch});
    EXPECT_EQ(std::ranges::distance(shard.begin(), shard.end()), 4);
    EXPECT_EQ(std::ranges::count(readers, std::this_thread::get_id()), prefetch == 0 ? 4 : 0);
    EXPECT_EQ(readers.size(), 4);
  }
}

TEST(DataLoaderShard, RefusesWhatMakesNoSense) {
  DataLoader loader(numbers(8), {.batch_size = 3});
  EXPECT_THAT(value_error_of([&] { loader.shard({.num_shares = 2, .split_batches = true}); }),
              HasSubstr("batch size 3 is not divisible by the number of data shares, 2"));
  EXPECT_THROW(loader.shard({.share = 2, .num_shares = 2}), c10::ValueError);
  EXPECT_THROW(loader.shard({}).shard({}), c10::Error);
}

}  // namespace
}  // namespace accelerate
