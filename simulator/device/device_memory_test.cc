#include "simulator/device/device_memory.h"

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::simulator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMebibyte = 1024 * 1024;

MemoryBlock* block(void* data) { return static_cast<MemoryBlock*>(data) - 1; }

int64_t held(const DeviceMemory& memory, MemoryCategory category) {
  return memory.by_category()[static_cast<size_t>(category)];
}

class DeviceMemoryTest : public ::testing::Test {
 protected:
  DeviceMemoryTest() { memory_.reset("sim:1 (test)", kMebibyte, nullptr); }

  // Never destroyed in production either: blocks point to it.
  DeviceMemory& memory_ = *new DeviceMemory();
};

TEST_F(DeviceMemoryTest, CountsInBlocksOf512Bytes) {
  void* one = memory_.allocate(1, nullptr);
  void* more = memory_.allocate(513, nullptr);
  EXPECT_EQ(memory_.in_use(), 512 + 1024);
  EXPECT_EQ(memory_.num_blocks(), 2);
  DeviceMemory::release(one);
  EXPECT_EQ(memory_.in_use(), 1024);
  DeviceMemory::release(more);
  EXPECT_EQ(memory_.in_use(), 0);
  EXPECT_EQ(memory_.peak(), 512 + 1024);
}

TEST_F(DeviceMemoryTest, GivesNothingForNothing) {
  EXPECT_EQ(memory_.allocate(0, nullptr), nullptr);
  DeviceMemory::release(nullptr);
  EXPECT_EQ(memory_.num_blocks(), 0);
}

TEST_F(DeviceMemoryTest, FillsUpToTheLastBlockAndNoFurther) {
  void* all = memory_.allocate(kMebibyte, nullptr);
  EXPECT_THROW(memory_.allocate(1, nullptr), c10::OutOfMemoryError);
  EXPECT_EQ(memory_.in_use(), kMebibyte);
  DeviceMemory::release(all);
  DeviceMemory::release(memory_.allocate(kMebibyte, nullptr));
}

TEST_F(DeviceMemoryTest, AnErrorNamesTheDeviceTheRequestAndTheHolders) {
  void* data = memory_.allocate(kMebibyte / 2, "aten::mm");
  try {
    memory_.allocate(kMebibyte, "aten::add");
    FAIL() << "no error";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_THAT(std::string(error.what_without_backtrace()),
                AllOf(HasSubstr("sim:1 (test) is out of memory"),
                      HasSubstr("aten::add asked for 1.00 MiB in step 0"),
                      HasSubstr("512.00 KiB of 1.00 MiB are free"),
                      HasSubstr("activations: 512.00 KiB in 1 block (512.00 KiB by aten::mm")));
  }
  DeviceMemory::release(data);
}

TEST_F(DeviceMemoryTest, TellsWhatMemoryIsForByWhenItWasMade) {
  std::vector<void*> blocks;
  auto allocate = [&] { blocks.push_back(memory_.allocate(512, nullptr)); };
  {
    const c10::AutoGradMode no_grad(false);
    allocate();  // a module that moves to its device
  }
  allocate();  // an activation
  memory_.begin_backward();
  allocate();
  memory_.end_backward();
  {
    const c10::AutoGradMode no_grad(false);
    allocate();  // momentum
    memory_.note_update();
  }
  EXPECT_EQ(held(memory_, MemoryCategory::kParameters), 512);
  EXPECT_EQ(held(memory_, MemoryCategory::kActivations), 512);
  EXPECT_EQ(held(memory_, MemoryCategory::kTemporaries), 512);
  EXPECT_EQ(held(memory_, MemoryCategory::kOptimizerState), 512);
  memory_.mark(block(blocks[2]), MemoryCategory::kGradients);
  EXPECT_TRUE(memory_.note_forward());
  EXPECT_EQ(held(memory_, MemoryCategory::kGradients), 512);
  EXPECT_EQ(held(memory_, MemoryCategory::kOptimizerState), 512);
  EXPECT_EQ(held(memory_, MemoryCategory::kTemporaries), 0);
  EXPECT_EQ(memory_.step(), 1);
  for (void* data : blocks) DeviceMemory::release(data);
  EXPECT_EQ(memory_.in_use(), 0);
}

TEST_F(DeviceMemoryTest, BelievesTheProgramMoreThanWhatItRecognises) {
  void* data = memory_.allocate(512, nullptr);
  memory_.note(block(data), MemoryCategory::kGatheredParameters);
  for (const auto seen : {MemoryCategory::kParameters, MemoryCategory::kBuckets}) {
    memory_.mark(block(data), seen);
    EXPECT_EQ(held(memory_, MemoryCategory::kGatheredParameters), 512);
    EXPECT_EQ(held(memory_, seen), 0);
  }
  memory_.note(block(data), MemoryCategory::kGradients);
  EXPECT_EQ(held(memory_, MemoryCategory::kGradients), 512);
  EXPECT_EQ(held(memory_, MemoryCategory::kGatheredParameters), 0);
  DeviceMemory::release(data);
  EXPECT_EQ(held(memory_, MemoryCategory::kGradients), 0);
}

TEST_F(DeviceMemoryTest, AStepNeedsABackwardPassAndAnUpdate) {
  memory_.note_update();  // initial weights
  EXPECT_FALSE(memory_.note_forward());
  memory_.begin_backward();
  memory_.end_backward();
  EXPECT_FALSE(memory_.note_forward());  // gradients accumulate
  memory_.note_update();
  EXPECT_TRUE(memory_.note_forward());
  EXPECT_FALSE(memory_.note_forward());
}

TEST_F(DeviceMemoryTest, ForgetsBlocksOfAnEarlierRun) {
  void* old = memory_.allocate(512, nullptr);
  memory_.reset("sim:1 (test)", kMebibyte, nullptr);
  EXPECT_EQ(memory_.in_use(), 0);
  memory_.mark(block(old), MemoryCategory::kBuckets);
  DeviceMemory::release(old);
  EXPECT_EQ(memory_.in_use(), 0);
}

TEST_F(DeviceMemoryTest, TellsItsObserverEveryChange) {
  std::vector<std::pair<MemoryCategory, int64_t>> changes;
  memory_.reset("sim:1 (test)", kMebibyte, [&](MemoryCategory category, int64_t delta) {
    changes.emplace_back(category, delta);
  });
  void* data = memory_.allocate(512, nullptr);
  memory_.mark(block(data), MemoryCategory::kBuckets);
  DeviceMemory::release(data);
  const std::vector<std::pair<MemoryCategory, int64_t>> expected{
      {MemoryCategory::kActivations, 512},
      {MemoryCategory::kActivations, -512},
      {MemoryCategory::kBuckets, 512},
      {MemoryCategory::kBuckets, -512}};
  EXPECT_EQ(changes, expected);
}

TEST_F(DeviceMemoryTest, ChargesAKernelsMemoryOnceItIsTheDevices) {
  void* columns = memory_.allocate_for_kernel(4096, "aten::convolution");
  void* result = memory_.allocate_for_kernel(513, "aten::convolution");
  EXPECT_EQ(memory_.in_use(), 0);
  EXPECT_EQ(memory_.adopt(result, "aten::convolution"), result);
  EXPECT_EQ(memory_.in_use(), 1024);
  EXPECT_STREQ(block(result)->operation, "aten::convolution");
  EXPECT_EQ(memory_.adopt(result, nullptr), result) << "it is the device's already";
  EXPECT_EQ(memory_.in_use(), 1024);
  DeviceMemory::release(columns);
  DeviceMemory::release(result);
  EXPECT_EQ(memory_.in_use(), 0);
  EXPECT_EQ(memory_.peak(), 1024) << "the columns count nowhere";
}

TEST_F(DeviceMemoryTest, AResultWithoutRoomIsAnErrorThatNamesItsOperatorAndTheHolders) {
  void* all = memory_.allocate(kMebibyte, "aten::mm");
  void* result = memory_.allocate_for_kernel(8, "aten::add");
  try {
    memory_.adopt(result, "aten::add");
    FAIL() << "no error";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_THAT(std::string(error.what_without_backtrace()),
                AllOf(HasSubstr("aten::add asked for"), HasSubstr("1.00 MiB by aten::mm")));
  }
  // It is still the host's.
  EXPECT_EQ(memory_.num_blocks(), 1);
  DeviceMemory::release(result);
  DeviceMemory::release(all);
  EXPECT_EQ(memory_.in_use(), 0);
  // A result that can never fit is refused before a kernel computes it.
  EXPECT_THROW(memory_.allocate_for_kernel(kMebibyte + 1, "aten::add"), c10::OutOfMemoryError);
  DeviceMemory::release(memory_.allocate_for_kernel(kMebibyte, "aten::add"));
}

class HollowBlocks : public DeviceMemoryTest {
 protected:
  HollowBlocks() { memory_.compute_shapes(1024); }
};

TEST_F(HollowBlocks, AreThoseOfMoreThanTheLimit) {
  void* real = memory_.allocate(1024, nullptr);
  void* hollow = memory_.allocate(1025, nullptr);
  EXPECT_EQ(block(real)->contents, Contents::kValues);
  EXPECT_EQ(block(real)->data(), real);
  EXPECT_EQ(block(hollow)->contents, Contents::kHollow);
  EXPECT_NE(block(hollow)->data(), hollow);
  EXPECT_EQ(memory_.in_use(), 1024 + 1536);
  DeviceMemory::release(real);
  DeviceMemory::release(hollow);
  EXPECT_EQ(memory_.in_use(), 0);
}

TEST_F(HollowBlocks, AreChargedMarkedAndNamedLikeOthers) {
  void* data = memory_.allocate(kMebibyte / 2, "aten::mm");
  memory_.mark(block(data), MemoryCategory::kBuckets);
  EXPECT_EQ(held(memory_, MemoryCategory::kBuckets), kMebibyte / 2);
  EXPECT_THAT(memory_.holders(),
              HasSubstr("buckets: 512.00 KiB in 1 block (512.00 KiB by aten::mm"));
  EXPECT_THROW(memory_.allocate(kMebibyte, nullptr), c10::OutOfMemoryError);
  DeviceMemory::release(data);
}

TEST_F(HollowBlocks, ReuseTheAddressesOfReleasedOnes) {
  void* first = memory_.allocate(4096, nullptr);
  void* const address = block(first)->data();
  void* second = memory_.allocate(4096, nullptr);
  EXPECT_EQ(block(second)->data(), static_cast<char*>(address) + 4096);
  DeviceMemory::release(first);
  void* third = memory_.allocate(2048, nullptr);
  EXPECT_EQ(block(third)->data(), address);
  EXPECT_EQ(memory_.addresses()->reserved(), 2 * kMebibyte);
  DeviceMemory::release(second);
  DeviceMemory::release(third);
}

TEST_F(HollowBlocks, ComeFromKernelsWithTheirBytes) {
  void* older = memory_.allocate(512, nullptr);
  void* small = memory_.allocate_for_kernel(512, "aten::add");
  void* large = memory_.allocate_for_kernel(4096, "aten::add");
  void* newer = memory_.allocate(512, nullptr);
  EXPECT_EQ(block(large)->contents, Contents::kValues);
  EXPECT_EQ(memory_.adopt(small, "aten::add"), small);
  void* hollow = memory_.adopt(large, "aten::add");
  EXPECT_EQ(block(hollow)->contents, Contents::kHollow);
  EXPECT_STREQ(block(hollow)->operation, "aten::add");
  EXPECT_EQ(memory_.in_use(), 3 * 512 + 4096);
  EXPECT_EQ(memory_.num_blocks(), 4);
  for (void* data : {older, hollow, small, newer}) DeviceMemory::release(data);
  EXPECT_EQ(memory_.in_use(), 0);
  EXPECT_EQ(memory_.num_blocks(), 0);
}

TEST_F(HollowBlocks, KeepKernelsFromComputingMuch) {
  memory_.reset("sim:1 (test)", int64_t{1} << 40, nullptr);
  DeviceMemory::release(memory_.allocate_for_kernel(size_t{65} << 20, nullptr));
  memory_.compute_shapes(1024);
  EXPECT_THROW(memory_.allocate_for_kernel(size_t{65} << 20, "aten::mm"), KernelTooLarge);
  DeviceMemory::release(memory_.allocate_for_kernel(size_t{64} << 20, "aten::mm"));
  EXPECT_EQ(memory_.in_use(), 0);
}

TEST_F(HollowBlocks, OfAnEarlierRunAreForgotten) {
  void* old = memory_.allocate(4096, nullptr);
  memory_.reset("sim:1 (test)", kMebibyte, nullptr);
  void* data = memory_.allocate(4096, nullptr);
  EXPECT_EQ(block(data)->contents, Contents::kValues);
  DeviceMemory::release(old);
  EXPECT_EQ(memory_.in_use(), 4096);
  DeviceMemory::release(data);
}

TEST(HostBlocks, AreCountedAsLongAsTheyLive) {
  std::atomic<int64_t> use = 0;
  void* counted = DeviceMemory::allocate_uncharged(100, &use);
  void* other = DeviceMemory::allocate_uncharged(100);
  EXPECT_EQ(use, 128);
  DeviceMemory::release(other);
  EXPECT_EQ(use, 128);
  DeviceMemory::release(counted);
  EXPECT_EQ(use, 0);
}

}  // namespace
}  // namespace accelerate::simulator
