#include "accelerate/data/tensor_dataset.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using ::testing::HasSubstr;

TEST(TensorDataset, GathersTheSameRowsOfEveryTensor) {
  const at::Tensor images = at::arange(12).reshape({4, 3}).to(at::kFloat);
  const at::Tensor labels = at::arange(4) * 10;
  const TensorDataset<2> dataset = make_tensor_dataset(images, labels);
  EXPECT_EQ(dataset.size(), 4);
  auto [batch_images, batch_labels] = dataset.get_batch(at::tensor({3, 0}, at::kLong));
  EXPECT_TRUE(at::equal(batch_images, at::stack({images[3], images[0]})));
  EXPECT_TRUE(at::equal(batch_labels, at::tensor({30, 0}, at::kLong)));
}

TEST(TensorDataset, GivesBatchesMemoryOfTheirOwn) {
  const at::Tensor data = at::arange(4);
  auto [batch] = make_tensor_dataset(data).get_batch(at::arange(2));
  batch.fill_(-1);
  EXPECT_TRUE(at::equal(data, at::arange(4)));
}

TEST(TensorDataset, NamesTheSizesThatDiffer) {
  try {
    make_tensor_dataset(at::zeros({3, 2}), at::zeros({4}));
    FAIL() << "no exception";
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("[3, 4]"));
  }
}

TEST(TensorDataset, RefusesTensorsWithoutRows) {
  EXPECT_THROW(make_tensor_dataset(at::zeros({})), c10::ValueError);
  EXPECT_THROW(make_tensor_dataset(at::zeros({2}), at::Tensor()), c10::ValueError);
}

}  // namespace
}  // namespace accelerate
