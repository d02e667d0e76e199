// Operators on a simulated device compute what they compute on the CPU, to the bit.
// One shape each: operators of one device against those of the CPU.
#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <torch/utils.h>

#include "integration_tests/device/op_cases.h"
#include "integration_tests/device/tensor_bits.h"
#include "simulator/cluster/cluster.h"

namespace accelerate::device_test {
namespace {

using simulator::Cluster;
using simulator::Rank;

Tensors run_on(const OpCase& op_case, c10::Device device) {
  torch::manual_seed(1);
  Inputs inputs(device);
  return op_case.run(inputs);
}

// The differences between the CPU and `device`; empty if there are none.
std::string differences(const OpCase& op_case, c10::Device device) {
  const Tensors expected = run_on(op_case, c10::Device(c10::kCPU));
  const Tensors actual = run_on(op_case, device);
  std::ostringstream text;
  if (expected.empty()) text << "the case returns nothing";
  if (expected.size() != actual.size()) {
    text << expected.size() << " tensors on the CPU, " << actual.size() << " on the device";
    return text.str();
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    const std::string found = difference(expected[i], actual[i], device);
    if (!found.empty())
      text << "tensor " << i << " of " << expected.size() << ": " << found << "\n";
  }
  return text.str();
}

class OpEquality : public ::testing::TestWithParam<OpCase> {};

TEST_P(OpEquality, HoldsToTheBit) {
  Cluster cluster("1x1:h100");
  std::string found;
  cluster.run_on_every_rank([&](Rank& rank) {
    ASSERT_TRUE(rank.runtime().device().is_privateuseone());
    found = differences(GetParam(), rank.runtime().device());
  });
  EXPECT_EQ(found, "");
}

INSTANTIATE_TEST_SUITE_P(Ops, OpEquality, ::testing::ValuesIn(all_op_cases()),
                         [](const ::testing::TestParamInfo<OpCase>& info) {
                           return info.param.name;
                         });

TEST(OpCases, AreManyAndNamedApart) {
  std::set<std::string> names;
  for (const OpCase& op_case : all_op_cases()) {
    EXPECT_TRUE(names.insert(op_case.name).second) << op_case.name << " is there twice";
  }
  EXPECT_GE(names.size(), 350);
}

// The comparison has to see what it is for.
TEST(TensorBits, AreComparedOneByOne) {
  Cluster cluster("1x1:h100");
  std::string same, sign_of_zero, dtype, strides, place;
  cluster.run_on_every_rank([&](Rank& rank) {
    const c10::Device device = rank.runtime().device();
    const Tensor zeros = at::zeros({2, 3});
    same = difference(zeros / 0, (zeros / 0).to(device), device);
    sign_of_zero = difference(zeros, -zeros.to(device), device);
    dtype = difference(zeros, zeros.to(device).to(at::kDouble), device);
    strides = difference(zeros, at::zeros({3, 2}).to(device).t(), device);
    place = difference(zeros, zeros, device);
  });
  EXPECT_EQ(same, "");
  EXPECT_EQ(sign_of_zero,
            "6 of 6 elements differ, the first is number 0: 0 on the CPU, -0 on the device");
  EXPECT_EQ(dtype, "dtype Float on the CPU, Double on the device");
  EXPECT_EQ(strides, "strides [3, 1] on the CPU, [1, 2] on the device");
  EXPECT_EQ(place, "it is on cpu, not on sim:0");
}

}  // namespace
}  // namespace accelerate::device_test
