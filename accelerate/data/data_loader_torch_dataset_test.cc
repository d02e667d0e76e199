/// The DataLoader over LibTorch's own datasets.
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/stateful.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/transforms/lambda.h>
#include <torch/data/transforms/stack.h>

#include <optional>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "accelerate/data/data_loader.h"

namespace accelerate {
namespace {

namespace datasets = torch::data::datasets;
using ::testing::ElementsAre;
using torch::data::Example;
using torch::data::TensorExample;
using torch::data::transforms::Stack;

// Sample i is (i, -i). Without a size it claims not to know it.
class Numbers : public datasets::Dataset<Numbers> {
 public:
  explicit Numbers(std::optional<size_t> size) : size_(size) {}
  Example<> get(size_t index) override {
    const auto value = static_cast<int64_t>(index);
    return {torch::tensor(value), torch::tensor(-value)};
  }
  std::optional<size_t> size() const override { return size_; }

 private:
  std::optional<size_t> size_;
};

std::vector<int64_t> values(const at::Tensor& tensor) {
  const int64_t* data = tensor.const_data_ptr<int64_t>();
  return std::vector<int64_t>(data, data + tensor.numel());
}

TEST(DataLoaderOverTorchDatasets, CollatesWithAMap) {
  for (int num_workers : {0, 2}) {
    DataLoader loader(Numbers(5).map(Stack<>()), {.batch_size = 3, .num_workers = num_workers});
    std::vector<int64_t> sizes;
    for (auto& batch : loader) {
      EXPECT_TRUE(torch::equal(batch.data, -batch.target));
      sizes.push_back(batch.data.size(0));
    }
    EXPECT_THAT(sizes, ElementsAre(3, 2));
    EXPECT_EQ(loader.size(), 2);
  }
}

TEST(DataLoaderOverTorchDatasets, ShufflesWithAMap) {
  DataLoader loader(Numbers(30).map(Stack<>()), {.batch_size = 30, .shuffle = true});
  for (auto& batch : loader) {
    EXPECT_FALSE(torch::equal(batch.data, torch::arange(30)));
    EXPECT_TRUE(torch::equal(std::get<0>(batch.data.sort()), torch::arange(30)));
    EXPECT_TRUE(torch::equal(batch.data, -batch.target));
  }
}

TEST(DataLoaderOverTorchDatasets, GivesWhatIsNotStackedAsItIs) {
  std::vector<size_t> sizes;
  for (std::vector<Example<>>& batch : DataLoader(Numbers(5), {.batch_size = 3})) {
    sizes.push_back(batch.size());
  }
  EXPECT_THAT(sizes, ElementsAre(3, 2));
}

// A collate callable may be LibTorch's Stack as well as one's own.
TEST(DataLoaderOverTorchDatasets, TakesACollateCallable) {
  auto stack = [](std::vector<Example<>> samples) {
    return Stack<>().apply_batch(std::move(samples));
  };
  for (Example<>& batch : DataLoader(Numbers(3), {.batch_size = 3}, stack)) {
    EXPECT_THAT(values(batch.data), ElementsAre(0, 1, 2));
  }
  for (auto& batch : DataLoader(Numbers(3), {.batch_size = 3}, DefaultCollate())) {
    EXPECT_EQ(batch.size(), 3) << "the default leaves what get_batch gives";
  }
}

TEST(DataLoaderOverTorchDatasets, PlacesLabelledUnlabelledAndUncollatedBatches) {
  const ShardOptions options{.share = 1, .num_shares = 2, .device = c10::kMeta};
  for (auto& batch : DataLoader(Numbers(4).map(Stack<>()), {.batch_size = 2}).shard(options)) {
    EXPECT_TRUE(batch.data.is_meta() && batch.target.is_meta());
  }
  datasets::TensorDataset rows(torch::arange(4));
  for (auto& batch :
       DataLoader(rows.map(Stack<TensorExample>()), {.batch_size = 2}).shard(options)) {
    EXPECT_TRUE(batch.data.is_meta());
    EXPECT_EQ(batch.data.size(0), 2);
  }
  for (std::vector<Example<>>& batch : DataLoader(Numbers(4), {.batch_size = 2}).shard(options)) {
    EXPECT_TRUE(batch.at(1).target.is_meta());
  }
}

TEST(DataLoaderOverTorchDatasets, AsksEachRankForItsSamples) {
  std::vector<int64_t> seen;
  DataLoader loader(Numbers(7).map(Stack<>()), {.batch_size = 2});
  for (auto& batch : loader.shard({.share = 2, .num_shares = 3})) {
    for (int64_t value : values(batch.data)) seen.push_back(value);
  }
  EXPECT_THAT(seen, ElementsAre(4, 5, 3, 4));
}

TEST(DataLoaderOverTorchDatasets, RefusesADatasetWithoutASize) {
  EXPECT_THROW(DataLoader(Numbers(std::nullopt).map(Stack<>())), c10::ValueError);
}

// ---- Streams

// (0), (1), … in blocks, as many as its size says.
class Blocks : public datasets::StreamDataset<Blocks, std::vector<Example<>>> {
 public:
  std::vector<Example<>> get_batch(size_t count) override {
    std::vector<Example<>> block;
    for (size_t i = 0; i < count; ++i, ++at_) {
      block.emplace_back(torch::tensor(at_), torch::tensor(-at_));
    }
    return block;
  }
  std::optional<size_t> size() const override { return 5; }
  void reset() { at_ = 0; }

 private:
  int64_t at_ = 0;
};

TEST(DataLoaderOverTorchDatasets, CollatesTheExamplesOfAStream) {
  for (int num_workers : {0, 1}) {
    DataLoader loader(Blocks(), {.batch_size = 2, .num_workers = num_workers});
    for (int pass = 0; pass < 2; ++pass) {
      std::vector<int64_t> seen;
      for (Example<>& batch : loader) {
        EXPECT_TRUE(torch::equal(batch.data, -batch.target));
        for (int64_t value : values(batch.data)) seen.push_back(value);
      }
      EXPECT_THAT(seen, ElementsAre(0, 1, 2, 3, 4));
    }
    EXPECT_EQ(loader.size(), 3);
  }
}

// Ends when it gives nothing.
class Chunks : public datasets::StatefulDataset<Chunks, std::vector<TensorExample>> {
 public:
  std::optional<std::vector<TensorExample>> get_batch(size_t) override {
    if (at_ == 3) return std::nullopt;
    return std::vector<TensorExample>{torch::tensor(at_++)};
  }
  std::optional<size_t> size() const override { return std::nullopt; }
  void reset() override { at_ = 0; }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  int64_t at_ = 0;
};

TEST(DataLoaderOverTorchDatasets, ReadsAStatefulDatasetUntilItGivesNothing) {
  DataLoader loader(Chunks(), {.batch_size = 2});
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<int64_t> sizes;
    for (TensorExample& batch : loader) sizes.push_back(batch.data.size(0));
    EXPECT_THAT(sizes, ElementsAre(2, 1));
  }
  EXPECT_EQ(loader.epoch(), 2);
  EXPECT_THROW(loader.size(), c10::ValueError);
}

}  // namespace
}  // namespace accelerate
