/// The DataLoader over LibTorch's own datasets.
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/transforms/stack.h>

#include <optional>
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

TEST(DataLoaderOverTorchDatasets, CollatesWithAMap) {
  DataLoader loader(Numbers(5).map(Stack<>()), {.batch_size = 3});
  std::vector<int64_t> sizes;
  for (auto& batch : loader) {
    EXPECT_TRUE(torch::equal(batch.data, -batch.target));
    sizes.push_back(batch.data.size(0));
  }
  EXPECT_THAT(sizes, ElementsAre(3, 2));
}

TEST(DataLoaderOverTorchDatasets, PlacesLabelledUnlabelledAndUncollatedBatches) {
  const ShardOptions options{.rank = 1, .world_size = 2, .device = c10::kMeta};
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
  for (auto& batch : loader.shard({.rank = 2, .world_size = 3})) {
    for (int64_t i = 0; i < batch.data.size(0); ++i) seen.push_back(batch.data[i].item<int64_t>());
  }
  EXPECT_THAT(seen, ElementsAre(4, 5, 3, 4));
}

TEST(DataLoaderOverTorchDatasets, RefusesADatasetWithoutASize) {
  EXPECT_THROW(DataLoader(Numbers(std::nullopt).map(Stack<>())), c10::ValueError);
}

}  // namespace
}  // namespace accelerate
