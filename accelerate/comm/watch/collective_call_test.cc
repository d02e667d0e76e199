#include "accelerate/comm/watch/collective_call.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using c10d::OpType;
using c10d::ReduceOp;

CollectiveFingerprint all_reduce(std::vector<at::Tensor> tensors) {
  CollectiveFingerprint fingerprint;
  fingerprint.op = OpType::ALLREDUCE;
  fingerprint.reduce_op = ReduceOp::SUM;
  fingerprint.sequence = 3;
  for (const at::Tensor& tensor : tensors) fingerprint.add(tensor);
  return fingerprint;
}

at::Tensor tensor(std::vector<int64_t> shape, at::ScalarType dtype = at::kFloat) {
  return at::empty(shape, dtype);
}

TEST(CollectiveFingerprint, ReadsWell) {
  EXPECT_EQ(all_reduce({tensor({4, 2})}).to_string(), "all_reduce #3 (sum, Float[4, 2])");
  EXPECT_EQ(all_reduce({tensor({})}).to_string(), "all_reduce #3 (sum, Float[])");
  EXPECT_EQ(all_reduce(std::vector<at::Tensor>(6, tensor({1}))).to_string(),
            "all_reduce #3 (sum, Float[1], Float[1], Float[1], Float[1], and 2 more)");
  CollectiveFingerprint broadcast;
  broadcast.op = OpType::BROADCAST;
  broadcast.root = 2;
  broadcast.add(tensor({1}, at::kLong));
  EXPECT_EQ(broadcast.to_string(), "broadcast #0 (root 2, Long[1])");
  CollectiveFingerprint send;
  send.op = OpType::SEND;
  send.peer = 1;
  send.tag = 9;
  EXPECT_EQ(send.to_string(), "send to 1, tag 9");
}

TEST(CollectiveFingerprint, FindsEveryDifference) {
  const CollectiveFingerprint base = all_reduce({tensor({4})});
  EXPECT_EQ(base.difference(all_reduce({tensor({4})})), std::nullopt);
  EXPECT_EQ(base.difference(all_reduce({tensor({5})})), "shape Float[4] against Float[5]");
  EXPECT_EQ(base.difference(all_reduce({tensor({2, 2})})), "shape Float[4] against Float[2, 2]");
  EXPECT_EQ(base.difference(all_reduce({tensor({4}, at::kInt)})), "dtype Float[4] against Int[4]");
  EXPECT_EQ(base.difference(all_reduce({tensor({4}), tensor({1})})),
            "tensors Float[4] against Float[4], Float[1]");
  CollectiveFingerprint other = base;
  other.reduce_op = ReduceOp::MAX;
  EXPECT_EQ(base.difference(other), "reduce op sum against max");
  other = base;
  other.root = 1;
  EXPECT_EQ(base.difference(other), "root -1 against 1");
  other = base;
  other.op = OpType::BARRIER;
  EXPECT_EQ(base.difference(other), "operation all_reduce against barrier");
}

TEST(CollectivePurpose, TellsCallsOfTheSameShapesApart) {
  std::vector<at::Tensor> tensors = {tensor({4})};
  const auto repeat = [](c10d::Backend&) { return c10::intrusive_ptr<c10d::Work>(); };
  const CollectiveCall call{.op = OpType::ALLREDUCE, .inputs = tensors, .repeat = repeat};
  const auto described = [&](const std::string& text) {
    const CollectivePurpose purpose(text);
    EXPECT_EQ(CollectivePurpose::current(), text);
    return call.describe();
  };
  const CollectiveFingerprint weights = described("weights"), biases = described("biases");
  EXPECT_EQ(weights.difference(biases), "weights against biases");
  EXPECT_EQ(weights.difference(described("weights")), std::nullopt);
  EXPECT_NE(weights.hash(), biases.hash());
  EXPECT_EQ(weights.to_string(), "all_reduce #0 (Float[4], weights)");
  EXPECT_EQ(call.describe().purpose, "");
  EXPECT_EQ(CollectivePurpose::current(), "");
}

TEST(CarriedValues, AreWhatACallIsDescribedBy) {
  std::vector<at::Tensor> bytes = {tensor({4}, at::kByte)};
  const auto repeat = [](c10d::Backend&) { return c10::intrusive_ptr<c10d::Work>(); };
  const CollectiveCall call{.op = OpType::BROADCAST, .inputs = bytes, .repeat = repeat};
  const CollectiveFingerprint of_bytes = call.describe();
  {
    const at::Tensor truth = tensor({4}, at::kBool);
    const CarriedValues carried(truth);
    EXPECT_EQ(call.describe().difference(of_bytes), "dtype Bool[4] against Byte[4]");
    EXPECT_NE(call.describe().hash(), of_bytes.hash());
  }
  EXPECT_EQ(call.describe().difference(of_bytes), std::nullopt);
}

// The same shapes cut differently are not the same.
TEST(CollectiveFingerprint, KeepsShapesApart) {
  const CollectiveFingerprint one = all_reduce({tensor({2, 3}), tensor({4})});
  const CollectiveFingerprint other = all_reduce({tensor({2}), tensor({3, 4})});
  EXPECT_TRUE(one.difference(other));
  EXPECT_NE(one.hash(), other.hash());
}

// Ranks in debug mode exchange hashes alone.
TEST(CollectiveFingerprint, HashesDifferWhereCallsDo) {
  CollectiveFingerprint base = all_reduce({tensor({4}), tensor({2, 2}, at::kLong)});
  base.root = 0;
  base.purpose = "weights";
  std::vector<CollectiveFingerprint> others(7, base);
  others[0].op = OpType::REDUCE;
  others[1].reduce_op = ReduceOp::MAX;
  others[2].root = 1;
  others[3].sequence = 4;
  others[4].purpose = "weight";
  others[5].dtypes[1] = at::kInt;
  others[6].sizes[2] = 3;
  for (const std::vector<at::Tensor>& tensors :
       {std::vector{tensor({4})}, std::vector{tensor({4}), tensor({4}, at::kLong)},
        std::vector{tensor({4}), tensor({2, 2}, at::kLong), tensor({0})}}) {
    others.push_back(all_reduce(tensors));
    others.back().root = base.root;
    others.back().purpose = base.purpose;
  }
  for (size_t i = 0; i < others.size(); ++i) {
    EXPECT_TRUE(base.difference(others[i])) << i;
    EXPECT_NE(base.hash(), others[i].hash()) << i;
  }
}

}  // namespace
}  // namespace accelerate
