#include "accelerate/comm/copy_tensor.h"

#include <vector>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "accelerate/testing/threaded_group.h"

namespace accelerate {
namespace {

TEST(CopyTensorToDevices, GivesAllRanksTheTensorOfOne) {
  run_ranks(3, [](const ProcessGroupPtr& group) {
    const at::Tensor theirs = at::arange(6).reshape({2, 3}).to(at::kBFloat16);
    const at::Tensor own = group->getRank() == 2 ? theirs : at::Tensor();
    const TensorSource source = gather_tensor_shape(group, own);
    EXPECT_EQ(source.rank, 2);
    EXPECT_EQ(source.information, tensor_information(theirs));
    EXPECT_TRUE(at::equal(copy_tensor_to_devices(group, own), theirs));
  });
}

TEST(CopyTensorToDevices, NeedsExactlyOneRankWithATensor) {
  run_ranks(2, [](const ProcessGroupPtr& group) {
    EXPECT_THROW(copy_tensor_to_devices(group), c10::ValueError);
    EXPECT_THROW(copy_tensor_to_devices(group, at::ones({1})), c10::ValueError);
  });
}

}  // namespace
}  // namespace accelerate
