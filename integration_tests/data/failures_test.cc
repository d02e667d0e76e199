// Options that make no sense, datasets that throw, loops that are left: what is said, and that
// nothing is left behind. No cluster.
#include <atomic>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "absl/strings/str_cat.h"
#include "integration_tests/data/draw.h"

namespace accelerate::data_tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The text of the exception that `fn` throws; "" if there is none.
template <typename Error, typename Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

template <typename Loader>
std::vector<Values> one_pass(const Loader& loader) {
  std::vector<Values> batches;
  for (auto& batch : loader) batches.push_back(values(batch));
  return batches;
}

Values numbers(int64_t count) {
  Values all;
  for (int64_t i = 0; i < count; ++i) all.push_back(i);
  return all;
}

// ---- Options

TEST(LoaderOptions, AreCheckedAndNamed) {
  auto refused = [](const DataLoaderOptions& options) {
    return error_of<c10::ValueError>([&] { DataLoader(numbers(4), options); });
  };
  EXPECT_THAT(refused({.batch_size = 0}), HasSubstr("batch_size"));
  EXPECT_THAT(refused({.batch_size = -3}), HasSubstr("batch_size"));
  EXPECT_THAT(refused({.num_workers = -1}), HasSubstr("num_workers"));
  EXPECT_THAT(refused({.prefetch_factor = 0}), HasSubstr("prefetch_factor"));
  EXPECT_THAT(refused({.timeout = absl::Seconds(-1)}), HasSubstr("timeout"));
  auto sampler = std::make_shared<SequentialSampler>(4);
  EXPECT_THAT(refused({.shuffle = true, .sampler = sampler}), HasSubstr("shuffle"));
  auto lists = std::make_shared<ListBatchSampler>(std::vector<Values>{{0}});
  EXPECT_THAT(refused({.batch_size = 2, .batch_sampler = lists}), HasSubstr("batch_sampler"));
  EXPECT_THAT(refused({.drop_last = true, .batch_sampler = lists}), HasSubstr("batch_sampler"));
  EXPECT_THAT(refused({.sampler = sampler, .batch_sampler = lists}), HasSubstr("batch_sampler"));
  const std::string of_stream = error_of<c10::ValueError>(
      [] { DataLoader(CountingStream(4, true), {.batch_size = 2, .shuffle = true}); });
  EXPECT_THAT(of_stream, HasSubstr("stream"));
}

TEST(LoaderOptions, AreCheckedAgainstTheRanks) {
  auto refused = [](const ShardOptions& options) {
    return error_of<c10::ValueError>(
        [&] { DataLoader(numbers(8), {.batch_size = 3}).shard(options); });
  };
  EXPECT_THAT(refused({.num_shares = 2, .split_batches = true}), HasSubstr("3 is not divisible"));
  EXPECT_THAT(refused({.share = 2, .num_shares = 2}),
              HasSubstr("share 2 of the data does not exist"));
  EXPECT_THAT(refused({.share = -1, .num_shares = 2}), HasSubstr("share -1"));
  EXPECT_THAT(refused({.num_shares = 0}), HasSubstr("there are 0 shares"));
  EXPECT_THAT(refused({.num_shares = 2, .dispatch_batches = true}), HasSubstr("process group"));
  EXPECT_THAT(refused({.dispatch_batches = true, .device_placement = false}),
              HasSubstr("dispatch_batches"));
  DataLoader lists(
      numbers(2),
      {.batch_sampler = std::make_shared<ListBatchSampler>(std::vector<Values>{{0}, {1}})});
  EXPECT_THROW(lists.shard({.num_shares = 2, .split_batches = true}), c10::ValueError);
  EXPECT_THROW(DataLoader(numbers(8)).skip_first(-1), c10::ValueError);
}

TEST(EmptyDatasets, HaveAPassWithoutBatchesUnlessShuffled) {
  for (int workers : {0, 2}) {
    for (int world_size : {1, 3}) {
      const ShardOptions share{.num_shares = world_size, .dispatch_batches = false};
      DataLoader loader(Values(), {.batch_size = 2, .num_workers = workers});
      EXPECT_EQ(one_pass(loader.shard(share)).size(), 0);
      EXPECT_EQ(loader.shard(share).size(), 0);
      DataLoader stream(CountingStream(0, true), {.batch_size = 2, .num_workers = workers});
      EXPECT_EQ(one_pass(stream.shard(share)).size(), 0);
      EXPECT_EQ(stream.shard(share).size(), 0);
    }
  }
  EXPECT_THROW(DataLoader(Values(), {.batch_size = 2, .shuffle = true}), c10::ValueError);
}

// ---- Datasets that throw

// Sample `broken` fails the first time it is read.
struct FailsOnce {
  enum How { kStandard, kTorch, kOther };

  int64_t broken = 0;
  How how = kStandard;
  std::shared_ptr<std::atomic<bool>> failed = std::make_shared<std::atomic<bool>>(false);

  int64_t size() const { return 20; }
  int64_t get(size_t index) {
    if (static_cast<int64_t>(index) == broken && !failed->exchange(true)) {
      if (how == kTorch) TORCH_CHECK_INDEX(false, "the file is damaged");
      if (how == kOther) throw 5;
      throw std::runtime_error("the file is damaged");
    }
    return static_cast<int64_t>(index);
  }
};

// The same as a stream.
struct StreamFailsOnce {
  int64_t broken = 0;
  std::shared_ptr<std::atomic<bool>> failed = std::make_shared<std::atomic<bool>>(false);
  int64_t count = 0;

  void reset() { count = 0; }
  std::optional<int64_t> next() {
    if (count == broken && !failed->exchange(true)) throw std::runtime_error("the file is damaged");
    return count < 20 ? std::optional(count++) : std::nullopt;
  }
};

TEST(DatasetsThatThrow, SayWhereAndCanBeReadAgain) {
  const int threads = count_threads();
  for (int workers : {0, 1, 2, 5}) {
    for (int64_t broken : {0, 7, 19}) {
      for (auto how : {FailsOnce::kStandard, FailsOnce::kTorch, FailsOnce::kOther}) {
        GradientState state;
        auto loader = DataLoader(FailsOnce{broken, how}, {.batch_size = 3, .num_workers = workers})
                          .shard({.gradient_state = &state});
        std::vector<int64_t> before;
        std::string error;
        try {
          for (auto& batch : loader) before.push_back(batch.numel());
        } catch (const DatasetError& caught) {
          EXPECT_NE(how, FailsOnce::kTorch);
          error = caught.what();
        } catch (const c10::IndexError& caught) {
          EXPECT_EQ(how, FailsOnce::kTorch);
          error = caught.what();
        }
        const std::string text =
            absl::StrCat("sample ", broken, ", workers ", workers, ": ", error);
        const std::string what =
            how == FailsOnce::kOther ? "unknown exception" : "the file is damaged";
        EXPECT_THAT(error, AllOf(HasSubstr(what), HasSubstr("rank 0"),
                                 HasSubstr(absl::StrCat("batch ", broken / 3)),
                                 HasSubstr(absl::StrCat("sample ", broken))));
        if (workers > 0) {
          EXPECT_THAT(error, HasSubstr(absl::StrCat("worker ", broken / 3 % workers)));
        }
        // The batches before the failure were given.
        EXPECT_EQ(before.size(), broken / 3) << text;
        EXPECT_FALSE(state.in_dataloader()) << text;
        EXPECT_EQ(loader.epoch(), 0) << text;
        EXPECT_EQ(count_threads(threads), threads) << text;
        EXPECT_EQ(one_pass(loader).size(), 7) << text;
        EXPECT_EQ(loader.epoch(), 1) << text;
      }
    }
  }
}

TEST(DatasetsThatThrow, EndAStreamsLoopOnceAndCanBeReadAgain) {
  const int threads = count_threads();
  for (int workers : {0, 2}) {
    for (int64_t broken : {0, 7, 19}) {
      for (int rank : {0, 1}) {
        GradientState state;
        auto loader = DataLoader(StreamFailsOnce{broken}, {.batch_size = 3, .num_workers = workers})
                          .shard({.share = rank,
                                  .num_shares = 2,
                                  .dispatch_batches = false,
                                  .gradient_state = &state});
        const std::string error = error_of<DatasetError>([&] { one_pass(loader); });
        EXPECT_THAT(error,
                    AllOf(HasSubstr("the file is damaged"), HasSubstr(absl::StrCat("rank ", rank)),
                          HasSubstr(absl::StrCat("batch ", broken / 6))));
        EXPECT_FALSE(state.in_dataloader());
        EXPECT_EQ(count_threads(threads), threads);
        EXPECT_EQ(one_pass(loader).size(), 4);
      }
    }
  }
}

// A batch that is whole is not lost because the one after it cannot be read.
TEST(DatasetsThatThrow, GiveAStreamsBatchesBeforeTheFailure) {
  for (int workers : {0, 2}) {
    DataLoader loader(StreamFailsOnce{7}, {.batch_size = 3, .num_workers = workers});
    std::vector<Values> before;
    EXPECT_THROW(for (auto& batch : loader) before.push_back(values(batch)), DatasetError);
    EXPECT_EQ(before, (std::vector<Values>{{0, 1, 2}, {3, 4, 5}})) << "workers " << workers;
  }
}

TEST(DatasetsThatThrow, CountAStreamsBatchesFromThePassesStart) {
  DataLoader loader(StreamFailsOnce{7}, {.batch_size = 3});
  EXPECT_THAT(error_of<DatasetError>([&] { one_pass(loader.skip_first(1)); }),
              HasSubstr("batch 2"));
}

TEST(DatasetsThatThrow, SayWhichSamplesDoNotStack) {
  const std::vector<at::Tensor> samples = {torch::ones(2), torch::ones(2), torch::ones(2),
                                           torch::ones(3)};
  for (int workers : {0, 2}) {
    DataLoader loader(samples, {.batch_size = 2, .num_workers = workers});
    std::vector<int64_t> before;
    const std::string error = error_of<c10::ValueError>([&] {
      for (auto& batch : loader) before.push_back(batch.numel());
    });
    EXPECT_EQ(before, (std::vector<int64_t>{4}));
    EXPECT_THAT(error, AllOf(HasSubstr("[3]"), HasSubstr("[2]"), HasSubstr("sample 1 of the batch"),
                             HasSubstr("rank 0, batch 1"), HasSubstr("samples 2, 3")));
  }
}

TEST(DatasetsThatThrow, MayBeTheCollateFunction) {
  auto collate = [](const Values& samples) {
    if (samples[0] == 4) throw std::runtime_error("cannot collate");
    return torch::tensor(samples);
  };
  for (int workers : {0, 2}) {
    DataLoader loader(numbers(8), {.batch_size = 2, .num_workers = workers}, collate);
    EXPECT_THAT(
        error_of<DatasetError>([&] { one_pass(loader); }),
        AllOf(HasSubstr("cannot collate"), HasSubstr("batch 2"), HasSubstr("samples 4, 5")));
  }
}

TEST(DatasetsThatThrow, MayBeTheWorkersInitialisation) {
  const int threads = count_threads();
  DataLoader loader(numbers(8),
                    {.batch_size = 2, .num_workers = 2, .worker_init = [](const WorkerInfo& info) {
                       if (info.id == 1) throw std::runtime_error("no licence");
                     }});
  EXPECT_THAT(error_of<std::exception>([&] { one_pass(loader); }), HasSubstr("no licence"));
  EXPECT_EQ(count_threads(threads), threads);
}

// ---- Loops that are left

TEST(LoopsThatAreLeft, LeaveNoThreadsAndRepeatTheEpoch) {
  const int threads = count_threads();
  for (uint64_t number = 0; number < 300; ++number) {
    Draw draw = draw_loader(number);
    draw.samples += 1;
    draw.geometry.drop_last = false;
    draw.geometry.num_workers = static_cast<int>(number % 4);
    // Only an order that follows from the epoch is repeated.
    if (draw.order != Order::kSeedable) draw.order = Order::kSequential;
    const Values order = orders(draw, 1)[0];
    const auto expected = expected_share(order, draw, 0);
    with_loader(draw, [&](auto loader) {
      GradientState state;
      auto shard = loader.shard(shard_options(draw, 0, &state));
      const uint64_t left_after = 1 + number % expected.size();
      uint64_t batches = 0;
      for (auto& batch : shard) {
        ASSERT_EQ(values(batch), expected[batches].samples) << draw.text();
        ASSERT_TRUE(state.in_dataloader());
        if (++batches == left_after) break;
      }
      ASSERT_FALSE(state.in_dataloader()) << draw.text();
      ASSERT_EQ(shard.epoch(), 0) << draw.text();
      ASSERT_EQ(count_threads(threads), threads) << draw.text();
      const std::vector<Values> again = one_pass(shard);
      ASSERT_EQ(again.size(), expected.size()) << draw.text();
      for (size_t i = 0; i < again.size(); ++i) {
        ASSERT_EQ(again[i], expected[i].samples) << draw.text();
      }
      ASSERT_EQ(shard.epoch(), 1) << draw.text();
    });
    if (HasFatalFailure()) return;
  }
}

TEST(LoopsThatAreLeft, CanBeWalkedTwiceAtOnce) {
  const int threads = count_threads();
  for (int workers : {0, 2}) {
    DataLoader loader(numbers(10), {.batch_size = 3, .num_workers = workers});
    const std::vector<Values> expected = one_pass(loader);
    auto first = loader.begin();
    auto second = loader.begin();
    for (const Values& batch : expected) {
      ASSERT_TRUE(first != loader.end() && second != loader.end());
      EXPECT_EQ(values(*first), batch);
      EXPECT_EQ(values(*second), batch);
      ++first;
      ++second;
    }
    EXPECT_TRUE(first == loader.end() && second == loader.end());
    EXPECT_EQ(count_threads(threads), threads);
  }
}

TEST(LoopsThatAreLeft, NestOverOneLoaderAndEndInAnyOrder) {
  GradientState state;
  auto outer = DataLoader(numbers(5), {.batch_size = 2}).shard({.gradient_state = &state});
  auto inner =
      DataLoader(numbers(7), {.batch_size = 3, .num_workers = 2}).shard({.gradient_state = &state});
  Values seen;
  for (auto& batch : outer) {
    const bool last = state.end_of_dataloader();
    EXPECT_EQ(state.remainder(), 1);
    for (auto& inner_batch : inner) {
      EXPECT_EQ(state.end_of_dataloader(), inner_batch.numel() == 1);
      EXPECT_EQ(state.round()->real_rows, inner_batch.numel() == 1 ? 1 : BatchRound::kAll);
      if (batch.numel() == 1) break;
    }
    EXPECT_EQ(state.end_of_dataloader(), last);
    seen.push_back(batch.numel());
  }
  EXPECT_EQ(seen, (Values{2, 2, 1}));
  std::optional early = outer.begin();
  auto late = inner.begin();
  early.reset();
  EXPECT_TRUE(state.in_dataloader());
  while (late != inner.end()) ++late;
  EXPECT_FALSE(state.in_dataloader());
}

TEST(LoopsThatAreLeft, MayOutliveTheGradientState) {
  auto state = std::make_unique<GradientState>();
  auto loader = DataLoader(numbers(6), {.batch_size = 2}).shard({.gradient_state = state.get()});
  auto iterator = loader.begin();
  state.reset();
  Values seen;
  for (; iterator != loader.end(); ++iterator) seen.push_back(values(*iterator)[0]);
  EXPECT_EQ(seen, (Values{0, 2, 4}));
}

TEST(LoopsThatAreLeft, MayOutliveTheirLoader) {
  const int threads = count_threads();
  for (int workers : {0, 2}) {
    std::optional loader(DataLoader(numbers(6), {.batch_size = 2, .num_workers = workers}));
    auto iterator = loader->begin();
    loader.reset();
    Values seen;
    for (; iterator != std::default_sentinel; ++iterator) seen.push_back(values(*iterator)[0]);
    EXPECT_EQ(seen, (Values{0, 2, 4}));
  }
  EXPECT_EQ(count_threads(threads), threads);
}

// The default shuffling has no order to be repeated, but the samples are all there.
TEST(LoopsThatAreLeft, CanBeShuffledAgain) {
  DataLoader loader(numbers(50), {.batch_size = 8, .shuffle = true, .num_workers = 2});
  auto left = loader.begin();
  ++left;
  Values all;
  for (auto& batch : loader) {
    const Values now = values(batch);
    all.insert(all.end(), now.begin(), now.end());
  }
  EXPECT_NE(all, numbers(50));
  EXPECT_THAT(all, ::testing::UnorderedElementsAreArray(numbers(50)));
}

}  // namespace
}  // namespace accelerate::data_tests
