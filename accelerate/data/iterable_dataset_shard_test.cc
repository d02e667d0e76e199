#include "accelerate/data/iterable_dataset_shard.h"

#include <optional>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randint.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/stateful.h>
#include <nlohmann/json.hpp>

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Values = std::vector<int64_t>;

// 0, 1, …, n - 1.
struct Numbers {
  int64_t count = 0;
  int64_t at = 0;

  std::optional<int64_t> next() { return at < count ? std::optional(at++) : std::nullopt; }
  void reset() { at = 0; }
  int64_t size() const { return count; }
};

template <typename Dataset>
Values pass(IterableDatasetShard<Dataset>& shard) {
  Values seen;
  shard.reset();
  while (auto sample = shard.next()) seen.push_back(*sample);
  return seen;
}

struct Case {
  int64_t samples;
  IterableShardOptions options;
  std::vector<Values> shards;
};

TEST(IterableDatasetShard, DealsBlocksAndFillsTheLastOne) {
  const std::vector<Case> cases{
      {10, {.batch_size = 2, .world_size = 3}, {{0, 1, 6, 7}, {2, 3, 8, 9}, {4, 5, 0, 1}}},
      {10,
       {.batch_size = 4, .world_size = 2, .split_batches = true},
       {{0, 1, 4, 5, 8, 9}, {2, 3, 6, 7, 0, 1}}},
      {3, {.batch_size = 4, .world_size = 2}, {{0, 1, 2, 0}, {1, 2, 0, 1}}},
      {7, {.batch_size = 2, .drop_last = true, .world_size = 2}, {{0, 1}, {2, 3}}},
      {8, {.batch_size = 2, .world_size = 2}, {{0, 1, 4, 5}, {2, 3, 6, 7}}},
      {0, {.batch_size = 2, .world_size = 2}, {{}, {}}},
      {1, {.batch_size = 1, .world_size = 3}, {{0}, {0}, {0}}},
  };
  for (const Case& c : cases) {
    for (int rank = 0; rank < c.options.world_size; ++rank) {
      SCOPED_TRACE(testing::Message() << c.samples << " samples, rank " << rank);
      IterableShardOptions options = c.options;
      options.rank = rank;
      IterableDatasetShard shard(Numbers{c.samples}, options);
      const Values& expected = c.shards[static_cast<size_t>(rank)];
      EXPECT_EQ(pass(shard), expected);
      EXPECT_EQ(pass(shard), expected) << "in the second pass";
      EXPECT_EQ(shard.size(), expected.size());
    }
  }
}

TEST(IterableDatasetShard, TellsWhatIsRealInASlice) {
  IterableDatasetShard shard(Numbers{9}, {.batch_size = 2, .rank = 1, .world_size = 3});
  shard.reset();
  auto slice = shard.next_slice();
  ASSERT_TRUE(slice);
  EXPECT_THAT(slice->samples, ElementsAre(2, 3));
  EXPECT_EQ(slice->own_rows, 2);
  EXPECT_EQ(slice->real_rows, 6);
  EXPECT_EQ(slice->taken, 6);
  slice = shard.next_slice();
  ASSERT_TRUE(slice);
  EXPECT_THAT(slice->samples, ElementsAre(8, 0));
  EXPECT_EQ(slice->own_rows, 1);
  EXPECT_EQ(slice->real_rows, 3);
  EXPECT_EQ(slice->taken, 9);
  EXPECT_FALSE(shard.next_slice());
  EXPECT_THAT(shard.first_block(), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(IterableDatasetShard, RefusesWhatMakesNoSense) {
  using Shard = IterableDatasetShard<Numbers>;
  EXPECT_THROW(Shard({5}, {.batch_size = 0}), c10::ValueError);
  EXPECT_THROW(Shard({5}, {.rank = 2, .world_size = 2}), c10::ValueError);
  EXPECT_THROW(Shard({5}, {.rank = -1}), c10::ValueError);
  EXPECT_THROW(Shard({5}, {.batch_size = 1, .world_size = 2, .split_batches = true}),
               c10::ValueError);
}

// A stream that has said that it ended is not asked again: it may have begun anew.
TEST(IterableDatasetShard, AsksNoMoreOfAStreamThatEnded) {
  struct StartsAnew {
    int64_t at = 0;
    std::optional<int64_t> next() {
      if (at < 5) return at++;
      at = 0;
      return std::nullopt;
    }
    void reset() { at = 0; }
  };
  IterableDatasetShard shard(StartsAnew{}, {.batch_size = 2});
  Values sizes;
  shard.reset();
  for (int i = 0; i < 5; ++i) {
    const auto slice = shard.next_slice();
    sizes.push_back(slice ? slice->real_rows : 0);
  }
  EXPECT_THAT(sizes, ElementsAre(2, 2, 1, 0, 0));
}

TEST(IterableDatasetShard, DoesNotKnowTheSizeThatTheStreamDoesNotKnow) {
  struct Unsized {
    std::optional<int64_t> next() { return std::nullopt; }
  };
  EXPECT_EQ((IterableDatasetShard<Unsized>({}, {}).size()), std::nullopt);
}

// ---- Epochs and generators

struct Epochs : Numbers {
  Values told;
  void set_epoch(int64_t epoch) { told.push_back(epoch); }
};

TEST(IterableDatasetShard, TellsTheStreamItsEpoch) {
  IterableDatasetShard shard(Epochs{{4}, {}}, {});
  shard.set_epoch(3);
  shard.set_epoch(5);
  EXPECT_THAT(shard.dataset().told, ElementsAre(3, 5));
}

// Draws its samples.
struct Drawn {
  at::Generator own = at::detail::createCPUGenerator(99);
  int64_t left = 0;

  at::Generator& generator() { return own; }
  void reset() { left = 4; }
  std::optional<int64_t> next() {
    if (left-- <= 0) return std::nullopt;
    return at::randint(1 << 20, {}, own, at::kLong).item<int64_t>();
  }
};

Values drawn(at::Generator generator, int64_t count) {
  Values values;
  while (static_cast<int64_t>(values.size()) < count) {
    values.push_back(at::randint(1 << 20, {}, generator, at::kLong).item<int64_t>());
  }
  return values;
}

TEST(IterableDatasetShard, ReseedsAStreamsGeneratorWithTheEpoch) {
  IterableDatasetShard shard(Drawn{}, {});
  for (int64_t epoch : {0, 6}) {
    shard.set_epoch(epoch);
    EXPECT_EQ(pass(shard), drawn(at::detail::createCPUGenerator(epoch), 4));
    EXPECT_EQ(pass(shard), drawn(at::detail::createCPUGenerator(epoch), 4));
  }
}

TEST(IterableDatasetShard, LeavesTheGeneratorAloneWhenToldSo) {
  IterableDatasetShard shard(Drawn{}, {.reseed = false});
  EXPECT_EQ(pass(shard), drawn(at::detail::createCPUGenerator(99), 4));
  struct SetsItself : Drawn {
    void set_epoch(int64_t) {}
  };
  IterableDatasetShard own(SetsItself{}, {});
  EXPECT_EQ(pass(own), drawn(at::detail::createCPUGenerator(99), 4));
}

// ---- Going on

TEST(IterableDatasetShard, GoesOnAfterSamplesThatWereTaken) {
  IterableDatasetShard shard(Numbers{11}, {.batch_size = 2, .rank = 1, .world_size = 2});
  shard.reset();
  shard.skip_to(8);
  const auto slice = shard.next_slice();
  ASSERT_TRUE(slice);
  EXPECT_THAT(slice->samples, ElementsAre(10, 0)) << "padded from the stream's beginning";
  EXPECT_EQ(slice->real_rows, 3);
  EXPECT_EQ(slice->taken, 11);
  EXPECT_FALSE(shard.next_slice());
  shard.reset();
  shard.skip_to(11);
  EXPECT_FALSE(shard.next_slice());
}

TEST(IterableDatasetShard, CannotGoOnBehindTheEnd) {
  IterableDatasetShard shard(Numbers{5}, {});
  shard.reset();
  try {
    shard.skip_to(6);
    FAIL() << "no exception";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("5 samples"), HasSubstr("after 6")));
  }
}

struct Stateful : Numbers {
  int64_t read = 0;

  std::optional<int64_t> next() {
    ++read;
    return Numbers::next();
  }
  nlohmann::json state_dict() { return {{"at", at}}; }
  void load_state_dict(const nlohmann::json& state) { at = state.at("at").get<int64_t>(); }
};

TEST(IterableDatasetShard, JumpsWithAStreamThatCan) {
  for (int64_t taken : {0, 2, 8, 900}) {
    IterableDatasetShard<Stateful> read({{1000}}, {.batch_size = 2, .world_size = 2});
    read.reset();
    read.skip_to(taken);
    IterableDatasetShard<Stateful> jumped({{1000}}, {.batch_size = 2, .world_size = 2});
    jumped.reset();
    jumped.jump_to(taken, read.dataset().state_dict());
    EXPECT_LE(jumped.dataset().read, 4) << "no more than the first block";
    while (auto expected = read.next_slice()) {
      const auto slice = jumped.next_slice();
      ASSERT_TRUE(slice);
      EXPECT_EQ(slice->samples, expected->samples);
      EXPECT_EQ(slice->taken, expected->taken);
    }
    EXPECT_FALSE(jumped.next_slice());
    EXPECT_EQ(jumped.first_block(), read.first_block());
  }
}

// ---- LibTorch's streams

// Would go on for ever, but knows its size.
class Blocks : public torch::data::datasets::StreamDataset<Blocks, Values> {
 public:
  explicit Blocks(std::optional<size_t> size) : size_(size) {}
  Values get_batch(size_t count) override {
    Values block;
    while (block.size() < count) block.push_back(at_++);
    return block;
  }
  std::optional<size_t> size() const override { return size_; }
  void reset() { at_ = 0; }

 private:
  std::optional<size_t> size_;
  int64_t at_ = 0;
};

TEST(IterableDatasetShard, ReadsTorchsStreamDatasetToTheEndOfItsSize) {
  IterableDatasetShard shard(Blocks(5), {.batch_size = 1, .rank = 1, .world_size = 2});
  EXPECT_THAT(pass(shard), ElementsAre(1, 3, 0));
  EXPECT_THAT(pass(shard), ElementsAre(1, 3, 0));
}

class Chunks : public torch::data::datasets::StatefulDataset<Chunks, Values> {
 public:
  std::optional<Values> get_batch(size_t count) override {
    if (at_ >= 3) return std::nullopt;
    Values block;
    while (block.size() < count && at_ < 3) block.push_back(at_++);
    return block;
  }
  void reset() override { at_ = 0; }
  std::optional<size_t> size() const override { return std::nullopt; }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  int64_t at_ = 0;
};

TEST(IterableDatasetShard, ReadsTorchsStatefulDatasetUntilItGivesNothing) {
  IterableDatasetShard shard(Chunks(), {.batch_size = 2});
  EXPECT_THAT(pass(shard), ElementsAre(0, 1, 2, 0));
  EXPECT_EQ(shard.size(), std::nullopt);
}

TEST(IterableDatasetShard, EndsWhereABlockIsEmpty) {
  struct EmptyAtTheEnd {
    int64_t left = 3;
    Values get_batch(size_t) { return left > 0 ? Values{left--} : Values(); }
  };
  IterableDatasetShard shard(EmptyAtTheEnd{}, {});
  EXPECT_THAT(pass(shard), ElementsAre(3, 2, 1));
  EXPECT_THAT(pass(shard), IsEmpty()) << "it cannot begin again";
}

}  // namespace
}  // namespace accelerate
