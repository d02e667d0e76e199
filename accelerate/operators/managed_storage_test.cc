#include "accelerate/operators/managed_storage.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate {
namespace {

using at::Tensor;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// An owner whose tensors of floats have one value throughout, once they are asked for.
class Keeper final : public StorageOwner {
 public:
  explicit Keeper(float value, bool* is_gone = nullptr) : value_(value), is_gone_(is_gone) {}
  ~Keeper() override {
    if (is_gone_ != nullptr) *is_gone_ = true;
  }

  void acquire(const Tensor& tensor, const c10::OperatorHandle& op, bool writes) override {
    calls.push_back((writes ? "write " : "read ") + op.schema().name());
    if (fails) throw std::runtime_error("the disk is gone");
    if (is_absent(tensor)) bring(tensor);
  }
  void release() override { calls.emplace_back("release"); }
  bool stays() const override { return keeps; }

  void bring(const Tensor& tensor) const {
    c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(c10::GetCPUAllocator()->allocate(storage->nbytes()));
    std::fill_n(static_cast<float*>(storage->mutable_data()), storage->nbytes() / sizeof(float),
                value_);
  }

  std::vector<std::string> take() { return std::exchange(calls, {}); }

  std::vector<std::string> calls;
  bool fails = false;
  bool keeps = true;

 private:
  const float value_;
  bool* const is_gone_;
};

using KeeperPtr = c10::intrusive_ptr<Keeper>;

Tensor absent_of(const KeeperPtr& keeper, at::IntArrayRef sizes = {2, 3}) {
  return keeper->make_absent(at::empty(sizes), c10::kCPU);
}

// The sum of the values, of which one operator makes use. An addition of a number would call that
// of a tensor.
float sum_of(const Tensor& tensor) {
  return (tensor + at::zeros(tensor.sizes())).sum().item<float>();
}

TEST(ManagedStorage, IsToldFromAnOrdinaryOne) {
  const auto keeper = c10::make_intrusive<Keeper>(7.0F);
  const Tensor absent = absent_of(keeper), ordinary = at::zeros({2});
  EXPECT_EQ(absent.sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(absent.storage().nbytes(), 24);
  EXPECT_EQ(storage_owner(absent), keeper.get());
  EXPECT_TRUE(is_absent(absent));
  EXPECT_FALSE(is_in_memory(absent));
  for (const Tensor& other : {ordinary, Tensor(), at::empty({0})}) {
    EXPECT_EQ(storage_owner(other), nullptr);
    EXPECT_FALSE(is_absent(other));
    EXPECT_TRUE(is_in_memory(other));
  }
  keeper->bring(absent);
  EXPECT_FALSE(is_absent(absent));
  EXPECT_TRUE(is_in_memory(absent));
  keeper->keeps = false;
  EXPECT_FALSE(is_in_memory(absent)) << "what may go at any time is nothing to rely on";
}

TEST(ManagedStorage, HasItsValuesWhileCodeReadsMemoryByItself) {
  const auto keeper = c10::make_intrusive<Keeper>(7.0F);
  const Tensor absent = absent_of(keeper);
  const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "");
  {
    UseOfMemory use;
    for (const Tensor& each : {at::zeros({2}), absent, Tensor()}) {
      use.add(each, op, /*writes=*/false);
    }
    EXPECT_THAT(keeper->take(), ElementsAre("read aten::mm"));
    EXPECT_EQ(static_cast<const float*>(absent.storage().data())[5], 7.0F);
  }
  EXPECT_THAT(keeper->take(), ElementsAre("release"));
}

TEST(ManagedStorage, HasItsValuesWhileAnOperatorUsesThem) {
  const at::NoGradGuard no_grad;
  const auto keeper = c10::make_intrusive<Keeper>(7.0F), other = c10::make_intrusive<Keeper>(2.0F);
  Tensor absent = absent_of(keeper);
  EXPECT_TRUE(at::equal(absent + at::ones({2, 3}), at::full({2, 3}, 8.0F)));
  EXPECT_THAT(keeper->take(), ElementsAre("read aten::add", "release"));
  // In whatever place it stands, in lists as well, and whatever is written.
  Tensor ordinary = at::zeros({2, 3});
  ordinary.add_(absent);
  EXPECT_THAT(keeper->take(), ElementsAre("read aten::add_", "release"));
  EXPECT_TRUE(at::equal(at::cat({ordinary, absent}), at::full({4, 3}, 7.0F)));
  const std::vector<std::string> in_list = keeper->take();
  ASSERT_FALSE(in_list.empty());
  EXPECT_EQ(in_list.front(), "read aten::cat");
  EXPECT_EQ(in_list.back(), "release");
  absent.mul_(at::full({2, 3}, 2.0F));
  EXPECT_THAT(keeper->take(), ElementsAre("write aten::mul_", "release"));
  EXPECT_TRUE(at::equal(absent * absent_of(other), at::full({2, 3}, 28.0F)));
  EXPECT_THAT(keeper->take(), ElementsAre("read aten::mul", "release"));
  EXPECT_THAT(other->take(), ElementsAre("read aten::mul", "release"));
}

// Views have the storage in common, and make no use of values.
TEST(ManagedStorage, IsThatOfItsViews) {
  const at::NoGradGuard no_grad;
  const auto keeper = c10::make_intrusive<Keeper>(7.0F);
  const Tensor absent = absent_of(keeper);
  const Tensor row = absent.select(0, 1), flat = absent.view({6}), same = absent.detach();
  EXPECT_THAT(keeper->calls, IsEmpty());
  for (const Tensor& view : {row, flat, same}) {
    EXPECT_EQ(storage_owner(view), keeper.get());
    EXPECT_TRUE(is_absent(view));
  }
  EXPECT_EQ(sum_of(row), 21);
  EXPECT_THAT(keeper->take(), ElementsAre("read aten::add", "release"));
  EXPECT_FALSE(is_absent(absent)) << "it came for all of them";
  keeper->drop_memory(absent.storage());
  for (const Tensor& each : {absent, row, flat, same}) EXPECT_TRUE(is_absent(each));
  EXPECT_EQ(sum_of(flat), 42) << "and comes again";
}

// Whoever was asked is told when it is over, also where something went wrong.
TEST(ManagedStorage, IsReleasedAfterAnError) {
  const at::NoGradGuard no_grad;
  const auto keeper = c10::make_intrusive<Keeper>(7.0F),
             failing = c10::make_intrusive<Keeper>(1.0F);
  failing->fails = true;
  const Tensor absent = absent_of(keeper), never = absent_of(failing);
  EXPECT_THROW(at::add(absent, never), std::runtime_error);
  EXPECT_THAT(keeper->take(), ElementsAre("read aten::add", "release"));
  EXPECT_THAT(failing->take(), ElementsAre("read aten::add")) << "it has given nothing";
  EXPECT_THROW(at::mm(absent, absent), c10::Error);
  EXPECT_THAT(keeper->take(), ElementsAre("read aten::mm", "read aten::mm", "release", "release"));
}

TEST(ManagedStorage, IsNotSeenWhereItsOwnerWorks) {
  const at::NoGradGuard no_grad;
  const auto keeper = c10::make_intrusive<Keeper>(7.0F);
  const Tensor absent = absent_of(keeper);
  keeper->bring(absent);
  {
    const UnwatchedOperators unwatched;
    EXPECT_EQ(sum_of(absent), 42);
    EXPECT_THAT(keeper->calls, IsEmpty());
  }
  EXPECT_EQ(sum_of(absent), 42);
  EXPECT_THAT(keeper->take(), ElementsAre("read aten::add", "release"));
}

TEST(ManagedStorage, KeepsItsOwnerWhileItIsAbsent) {
  bool is_gone = false;
  auto keeper = c10::make_intrusive<Keeper>(7.0F, &is_gone);
  Tensor absent = absent_of(keeper);
  Tensor view = absent.view({6});
  keeper.reset();
  absent.reset();
  EXPECT_FALSE(is_gone);
  view.reset();
  EXPECT_TRUE(is_gone);
}

}  // namespace
}  // namespace accelerate
