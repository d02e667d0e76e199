#include "simulator/device/kernel_chain.h"

#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace accelerate::simulator {
namespace {

constexpr double kTensor = 1024;  // bytes

class KernelChainTest : public ::testing::Test {
 protected:
  static at::Tensor tensor() { return at::empty({1}); }

  static TensorUse reads(const at::Tensor& tensor, double bytes = kTensor) {
    return {tensor.storage().unsafeGetStorageImpl(), bytes, false, false};
  }
  static TensorUse makes(const at::Tensor& tensor, double bytes = kTensor) {
    return {tensor.storage().unsafeGetStorageImpl(), bytes, true, true};
  }
  static TensorUse changes(const at::Tensor& tensor, double bytes = kTensor) {
    return {tensor.storage().unsafeGetStorageImpl(), bytes, true, false};
  }

  static KernelWork work_of(const std::vector<TensorUse>& uses) {
    KernelWork work;
    for (const TensorUse& use : uses) {
      work.bytes += use.bytes;
      if (use.written) work.written_bytes += use.bytes;
    }
    return work;
  }

  void begin(Fusion fusion, const std::vector<TensorUse>& uses) {
    chain_.begin(fusion, uses, work_of(uses));
  }
  // The bytes that the operator adds to the kernel, or -1 if it is a kernel of its own.
  double extend(Fusion fusion, const std::vector<TensorUse>& uses, bool is_norm = false) {
    KernelWork work = work_of(uses);
    if (is_norm) work.kind = KernelWork::Kind::kNorm;
    return chain_.extend(fusion, uses, work) ? work.bytes : -1;
  }

  KernelChain chain_;
  const at::Tensor x_ = tensor(), y_ = tensor(), z_ = tensor(), other_ = tensor();
};

TEST_F(KernelChainTest, AResultThatIsTakenStaysInRegisters) {
  begin(Fusion::kElementwise, {reads(x_), makes(y_)});
  // z takes the place of y, and x is there.
  EXPECT_EQ(extend(Fusion::kElementwise, {reads(y_), reads(x_), makes(z_)}), 0);
  EXPECT_EQ(chain_.total().bytes, 2 * kTensor);
  EXPECT_EQ(chain_.total().written_bytes, kTensor);
  // Another tensor has to be read. The write of y was saved once.
  EXPECT_EQ(extend(Fusion::kElementwise, {reads(y_), reads(other_), changes(z_)}), kTensor);
}

TEST_F(KernelChainTest, ANormsInputIsWrittenAllTheSame) {
  begin(Fusion::kElementwise, {reads(x_), makes(y_)});
  EXPECT_EQ(extend(Fusion::kRows, {reads(y_), makes(z_)}, true), kTensor);
  EXPECT_EQ(chain_.total().kind, KernelWork::Kind::kNorm);
  EXPECT_EQ(chain_.total().written_bytes, 2 * kTensor);
}

TEST_F(KernelChainTest, WhatIsChangedInPlaceIsWrittenOnce) {
  begin(Fusion::kElementwise, {changes(x_)});
  EXPECT_EQ(extend(Fusion::kElementwise, {changes(x_)}), 0);
  // What the kernel only read is written for the first time.
  begin(Fusion::kElementwise, {reads(x_), makes(y_)});
  EXPECT_EQ(extend(Fusion::kElementwise, {reads(y_), changes(x_)}), 0);  // for y
  EXPECT_EQ(extend(Fusion::kElementwise, {changes(x_), reads(other_)}), kTensor);
}

TEST_F(KernelChainTest, OneThatTakesNothingWrittenIsAnotherKernel) {
  begin(Fusion::kElementwise, {reads(x_), makes(y_)});
  EXPECT_EQ(extend(Fusion::kElementwise, {reads(x_), makes(z_)}), -1);
  EXPECT_EQ(extend(Fusion::kElementwise, {reads(other_), makes(z_)}), -1);
  // To write over a result as a whole is not to take it.
  EXPECT_EQ(extend(Fusion::kElementwise, {reads(other_), makes(y_)}), -1);
  EXPECT_EQ(extend(Fusion::kNone, {reads(y_), makes(z_)}), -1);
}

TEST_F(KernelChainTest, SharedTensorsAreAtLeastAQuarterOfTheLargest) {
  begin(Fusion::kElementwise, {reads(x_), makes(y_)});
  EXPECT_EQ(extend(Fusion::kElementwise, {reads(y_), makes(z_, 4 * kTensor + 8)}), -1);
  EXPECT_EQ(extend(Fusion::kElementwise, {reads(y_), makes(z_, 4 * kTensor)}), 3 * kTensor);
}

TEST_F(KernelChainTest, OneOfItsOperatorsReducesRows) {
  begin(Fusion::kRows, {reads(x_), makes(y_)});
  EXPECT_EQ(extend(Fusion::kRows, {reads(y_), makes(z_)}), -1);
  EXPECT_GE(extend(Fusion::kElementwise, {reads(y_), makes(z_)}), 0);
  EXPECT_EQ(extend(Fusion::kRows, {reads(z_), makes(other_)}), -1);

  begin(Fusion::kElementwise, {reads(x_), makes(y_)});
  EXPECT_GE(extend(Fusion::kRows, {reads(y_), makes(z_)}), 0);
  EXPECT_EQ(extend(Fusion::kRows, {reads(z_), makes(other_)}), -1);
}

TEST_F(KernelChainTest, WhatCannotBeFusedEndsIt) {
  begin(Fusion::kElementwise, {reads(x_), makes(y_)});
  EXPECT_TRUE(chain_.is_open());
  begin(Fusion::kNone, {reads(y_), makes(z_)});
  EXPECT_FALSE(chain_.is_open());
  EXPECT_EQ(extend(Fusion::kElementwise, {reads(z_), makes(other_)}), -1);

  begin(Fusion::kElementwise, {reads(x_), makes(y_)});
  chain_.end();
  EXPECT_EQ(extend(Fusion::kElementwise, {reads(y_), makes(z_)}), -1);
}

// A saved write does not pay for a read of a later part: time that was spent is spent.
TEST_F(KernelChainTest, SpentTimeIsNotGivenBack) {
  begin(Fusion::kElementwise, {reads(x_), makes(y_, 4 * kTensor)});
  EXPECT_EQ(extend(Fusion::kElementwise, {reads(y_, 4 * kTensor), makes(z_)}), 0);
  EXPECT_EQ(chain_.total().bytes, 2 * kTensor);
  // The kernel has passed five already.
  EXPECT_EQ(extend(Fusion::kElementwise, {reads(z_), reads(other_, 3 * kTensor), makes(y_)}), 0);
  EXPECT_EQ(chain_.total().bytes, 5 * kTensor);
  EXPECT_EQ(extend(Fusion::kElementwise, {changes(y_), reads(tensor())}), kTensor);
}

TEST_F(KernelChainTest, HasTheMostLaunchesAndAllTheWork) {
  const std::vector<TensorUse> first = {reads(x_), makes(y_)};
  KernelWork work = work_of(first);
  work.launches = 2;
  work.flops = 10;
  chain_.begin(Fusion::kElementwise, first, work);
  const std::vector<TensorUse> second = {reads(y_), makes(z_)};
  work = work_of(second);
  work.launches = 7;
  work.flops = 5;
  EXPECT_TRUE(chain_.extend(Fusion::kElementwise, second, work));
  EXPECT_EQ(chain_.total().launches, 7);
  EXPECT_EQ(chain_.total().flops, 15);
  work = work_of({reads(z_), changes(z_)});
  EXPECT_TRUE(chain_.extend(Fusion::kElementwise, {reads(z_), changes(z_)}, work));
  EXPECT_EQ(chain_.total().launches, 7);
}

}  // namespace
}  // namespace accelerate::simulator
