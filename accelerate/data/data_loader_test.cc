#include "accelerate/data/data_loader.h"

#include <iterator>
#include <stdexcept>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/data/tensor_dataset.h"

namespace accelerate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

using Values = std::vector<int64_t>;

static_assert(std::input_iterator<DataLoader<TensorDataset<1>>::Iterator>);

Values values(const at::Tensor& tensor) {
  const int64_t* data = tensor.const_data_ptr<int64_t>();
  return Values(data, data + tensor.numel());
}

// Sample i is the number i.
TensorDataset<1> numbers(int64_t size) { return make_tensor_dataset(at::arange(size)); }

template <typename Loader>
std::vector<Values> one_pass(const Loader& loader) {
  std::vector<Values> batches;
  for (auto& [batch] : loader) batches.push_back(values(batch));
  return batches;
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

TEST(DataLoader, BindsTheTensorsOfABatch) {
  const at::Tensor features = at::arange(10).reshape({5, 2});
  const at::Tensor labels = at::arange(5);
  std::vector<Values> shapes;
  for (auto& [x, y] : DataLoader(make_tensor_dataset(features, labels), {.batch_size = 2})) {
    EXPECT_EQ(x.size(1), 2);
    shapes.push_back({x.size(0), y.size(0)});
  }
  EXPECT_THAT(shapes, ElementsAre(Values{2, 2}, Values{2, 2}, Values{1, 1}));
}

TEST(DataLoader, CountsTheBatchesItGives) {
  for (bool drop_last : {false, true}) {
    DataLoader loader(numbers(7), {.batch_size = 3, .drop_last = drop_last});
    EXPECT_EQ(loader.size(), drop_last ? 2 : 3);
    EXPECT_EQ(one_pass(loader).size(), loader.size());
    EXPECT_EQ(loader.dataset_size(), 7);
    EXPECT_EQ(loader.total_batch_size(), 3);
  }
}

TEST(DataLoader, ShufflesEachEpochAnewAndReproducibly) {
  DataLoader loader(numbers(20), {.batch_size = 20, .shuffle = true, .seed = 42});
  const std::vector<Values> first = one_pass(loader);
  const std::vector<Values> second = one_pass(loader);
  EXPECT_NE(first, second);
  EXPECT_EQ(loader.epoch(), 2);
  loader.set_epoch(0);
  EXPECT_EQ(one_pass(loader), first);
  EXPECT_EQ(one_pass(loader), second);
}

TEST(DataLoader, DrawsASeedFromTheDefaultGeneratorOnlyToShuffle) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(5);
  DataLoader sequential(numbers(4));
  DataLoader given(numbers(4), {.shuffle = true, .seed = 1});
  DataLoader drawn(numbers(4), {.shuffle = true});
  generator.set_current_seed(5);
  DataLoader again(numbers(4), {.shuffle = true});
  EXPECT_EQ(sequential.seed(), std::nullopt);
  EXPECT_EQ(given.seed(), 1);
  EXPECT_EQ(drawn.seed(), again.seed());
}

TEST(DataLoader, RepeatsTheEpochAfterALoopLeftEarly) {
  DataLoader loader(numbers(8), {.batch_size = 2, .shuffle = true, .seed = 3});
  Values first;
  for (auto& [batch] : loader) {
    first = values(batch);
    break;
  }
  EXPECT_EQ(loader.epoch(), 0);
  EXPECT_EQ(one_pass(loader).front(), first);
  EXPECT_EQ(loader.epoch(), 1);
}

TEST(DataLoader, SharesItsEpochWithCopies) {
  DataLoader loader(numbers(4), {.batch_size = 2});
  DataLoader copy = loader;
  one_pass(copy);
  EXPECT_EQ(loader.epoch(), 1);
  EXPECT_EQ(&loader.dataset(), &copy.dataset());
}

TEST(DataLoader, GivesNothingForAnEmptyDataset) {
  GradientState state;
  DataLoader loader(numbers(0), {.batch_size = 2});
  EXPECT_EQ(one_pass(loader).size(), 0);
  for (int world_size : {1, 2}) {
    DataLoader shard = loader.shard({.world_size = world_size, .gradient_state = &state});
    EXPECT_EQ(one_pass(shard).size(), 0);
    EXPECT_EQ(shard.epoch(), 0);
    EXPECT_FALSE(state.in_dataloader());
  }
}

TEST(DataLoader, RefusesABatchSizeThatIsNotPositive) {
  EXPECT_THROW(DataLoader(numbers(4), {.batch_size = 0}), c10::ValueError);
}

TEST(DataLoaderShard, GivesEachRankItsBatchesOfOneSharedOrder) {
  DataLoader loader(numbers(12), {.batch_size = 2, .shuffle = true, .seed = 9});
  Values seen;
  for (int rank = 0; rank < 3; ++rank) {
    DataLoader shard = loader.shard({.rank = rank, .world_size = 3});
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
  DataLoader shard = loader.shard({.rank = 1, .world_size = 2, .split_batches = true});
  EXPECT_THAT(one_pass(shard), ElementsAre(Values{2, 3}, Values{1, 2}));
  EXPECT_EQ(shard.total_batch_size(), 4);
  EXPECT_EQ(shard.batch_size(), 4);
}

TEST(DataLoaderShard, LeavesTheBatchesOfARankAloneAsTheyAre) {
  GradientState state;
  DataLoader shard = DataLoader(numbers(5), {.batch_size = 2}).shard({.gradient_state = &state});
  EXPECT_TRUE(shard.is_prepared());
  std::vector<Values> batches;
  for (auto& [batch] : shard) {
    EXPECT_TRUE(state.in_dataloader());
    EXPECT_EQ(state.remainder(), 1);
    batches.push_back(values(batch));
  }
  EXPECT_THAT(batches, ElementsAre(Values{0, 1}, Values{2, 3}, Values{4}));
}

TEST(DataLoaderShard, TellsTheGradientStateWhichBatchIsLast) {
  GradientState state;
  DataLoader shard = DataLoader(numbers(10), {.batch_size = 2})
                         .shard({.rank = 1, .world_size = 3, .gradient_state = &state});
  std::vector<bool> ends;
  for ([[maybe_unused]] auto& batch : shard) {
    EXPECT_EQ(state.remainder(), 4);
    ends.push_back(state.end_of_dataloader());
  }
  EXPECT_THAT(ends, ElementsAre(false, true));
  EXPECT_FALSE(state.in_dataloader());
  EXPECT_FALSE(state.end_of_dataloader());
}

TEST(DataLoaderShard, DoesNotKnowTheRemainderOfADroppedRound) {
  GradientState state;
  DataLoader loader(numbers(10), {.batch_size = 2, .drop_last = true});
  DataLoader shard = loader.shard({.world_size = 3, .gradient_state = &state});
  for ([[maybe_unused]] auto& batch : shard) {
    EXPECT_EQ(state.remainder(), -1);
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

TEST(DataLoaderShard, UnregistersWhenALoopIsLeftEarly) {
  GradientState state;
  DataLoader shard = DataLoader(numbers(4), {.batch_size = 2}).shard({.gradient_state = &state});
  for ([[maybe_unused]] auto& batch : shard) {
    EXPECT_TRUE(state.in_dataloader());
    break;
  }
  EXPECT_FALSE(state.in_dataloader());
  EXPECT_EQ(shard.epoch(), 0);
}

TEST(DataLoaderShard, UnregistersWhenTheDatasetThrows) {
  GradientState state;
  for (int64_t broken : {0, 5}) {
    DataLoader shard =
        DataLoader(BrokenDataset{broken}, {.batch_size = 2}).shard({.gradient_state = &state});
    int batches = 0;
    EXPECT_THROW(for ([[maybe_unused]] auto& batch : shard)++ batches, std::runtime_error);
    EXPECT_EQ(batches, broken / 2);
    EXPECT_FALSE(state.in_dataloader());
    EXPECT_EQ(shard.epoch(), 0);
  }
}

TEST(DataLoaderShard, UnregistersAnIteratorThatFailedButLives) {
  GradientState state;
  DataLoader shard =
      DataLoader(BrokenDataset{2}, {.batch_size = 2}).shard({.gradient_state = &state});
  auto iterator = shard.begin();
  EXPECT_THROW(++iterator, std::runtime_error);
  EXPECT_TRUE(iterator == shard.end());
  EXPECT_FALSE(state.in_dataloader());
}

TEST(DataLoaderShard, MovesBatchesToItsDeviceOnlyWhenAsked) {
  DataLoader loader(numbers(4), {.batch_size = 2});
  for (bool placed : {false, true}) {
    for (auto& [batch] : loader.shard({.device = c10::kMeta, .device_placement = placed})) {
      EXPECT_EQ(batch.is_meta(), placed);
    }
  }
}

TEST(DataLoaderShard, TakesASeedThatRanksAgreedOn) {
  DataLoader loader(numbers(9), {.batch_size = 9, .shuffle = true, .seed = 1});
  DataLoader other(numbers(9), {.batch_size = 9, .shuffle = true, .seed = 2});
  EXPECT_EQ(one_pass(other.shard({.seed = loader.seed()})), one_pass(loader));
  DataLoader sequential(numbers(9), {.batch_size = 9});
  EXPECT_EQ(sequential.shard({.seed = 1}).seed(), std::nullopt) << "nothing to shuffle";
}

TEST(DataLoaderShard, ContinuesFromTheLoadersEpoch) {
  DataLoader loader(numbers(4), {.batch_size = 2});
  loader.set_epoch(3);
  EXPECT_EQ(loader.shard({}).epoch(), 3);
}

TEST(DataLoaderShard, RefusesWhatMakesNoSense) {
  DataLoader loader(numbers(8), {.batch_size = 3});
  try {
    loader.shard({.world_size = 2, .split_batches = true});
    FAIL() << "no exception";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("batch size 3 is not divisible by the world size 2"));
  }
  EXPECT_THROW(loader.shard({.rank = 2, .world_size = 2}), c10::ValueError);
  EXPECT_THROW(loader.shard({}).shard({}), c10::Error);
}

}  // namespace
}  // namespace accelerate
