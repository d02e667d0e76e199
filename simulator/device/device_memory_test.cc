#include "simulator/device/device_memory.h"

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

}  // namespace
}  // namespace accelerate::simulator
