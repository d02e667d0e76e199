// Where a caching allocator for CUDA would put blocks.
#include "simulator/device/address_space.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace accelerate::simulator {
namespace {

constexpr int64_t kKibibyte = 1024;
constexpr int64_t kMebibyte = 1024 * kKibibyte;

int64_t offset(const char* address) { return address - AddressSpace::base(); }

TEST(AddressSpace, CutsSmallBlocksFromSegmentsOfTwoMebibytes) {
  AddressSpace space(1024 * kMebibyte);
  char* first = space.allocate(512);
  char* second = space.allocate(kMebibyte);
  EXPECT_EQ(second - first, 512);
  EXPECT_EQ(space.reserved(), 2 * kMebibyte);
  // 1 MiB less 512 bytes are left.
  char* third = space.allocate(kMebibyte);
  EXPECT_EQ(offset(third), 2 * kMebibyte);
  EXPECT_EQ(space.reserved(), 4 * kMebibyte);
}

TEST(AddressSpace, CutsMediumBlocksFromSegmentsOfTwentyMebibytes) {
  AddressSpace space(1024 * kMebibyte);
  char* first = space.allocate(kMebibyte + 512);
  char* second = space.allocate(9 * kMebibyte);
  EXPECT_EQ(second - first, kMebibyte + 512);
  EXPECT_EQ(space.reserved(), 20 * kMebibyte);
}

TEST(AddressSpace, GivesLargeBlocksSegmentsOfTheirOwn) {
  AddressSpace space(1024 * kMebibyte);
  space.allocate(10 * kMebibyte);
  EXPECT_EQ(space.reserved(), 10 * kMebibyte);
  space.allocate(10 * kMebibyte + 512);
  EXPECT_EQ(space.reserved(), 22 * kMebibyte);
}

TEST(AddressSpace, SplitsALargeBlockOnlyIfMoreThanAMebibyteIsLeft) {
  AddressSpace space(1024 * kMebibyte);
  char* whole = space.allocate(10 * kMebibyte);
  space.release(whole);
  // 1 MiB would be left: the block stays whole, and the next one needs memory of its own.
  EXPECT_EQ(space.allocate(9 * kMebibyte), whole);
  EXPECT_EQ(space.reserved(), 10 * kMebibyte);
  space.release(whole);
  EXPECT_EQ(space.allocate(9 * kMebibyte - 512), whole);
  EXPECT_EQ(space.allocate(kMebibyte + 512), whole + 9 * kMebibyte - 512);
  EXPECT_EQ(space.reserved(), 10 * kMebibyte);
}

TEST(AddressSpace, TakesTheSmallestBlockThatFits) {
  AddressSpace space(1024 * kMebibyte);
  std::vector<char*> blocks;
  for (const int64_t kibibytes : {64, 4, 16, 4, 32, 4}) {
    blocks.push_back(space.allocate(kibibytes * kKibibyte));
  }
  for (const size_t index : {0, 2, 4}) space.release(blocks[index]);
  EXPECT_EQ(space.allocate(20 * kKibibyte), blocks[4]);
  EXPECT_EQ(space.allocate(16 * kKibibyte), blocks[2]);
  EXPECT_EQ(space.allocate(16 * kKibibyte), blocks[0]);
  EXPECT_EQ(space.allocate(16 * kKibibyte), blocks[0] + 16 * kKibibyte);
}

TEST(AddressSpace, JoinsFreeNeighbours) {
  AddressSpace space(1024 * kMebibyte);
  char* first = space.allocate(512 * kKibibyte);
  char* second = space.allocate(512 * kKibibyte);
  char* third = space.allocate(512 * kKibibyte);
  char* fourth = space.allocate(512 * kKibibyte);
  space.release(first);
  space.release(third);
  // Two halves with a block between them do not make a whole.
  char* elsewhere = space.allocate(kMebibyte);
  EXPECT_EQ(offset(elsewhere), 2 * kMebibyte);
  space.allocate(kMebibyte);  // the rest of that segment
  space.release(second);
  EXPECT_EQ(space.allocate(kMebibyte), first);
  space.release(fourth);
  EXPECT_EQ(space.allocate(kMebibyte), third);
  EXPECT_EQ(space.reserved(), 4 * kMebibyte);
}

TEST(AddressSpace, DoesNotJoinSegments) {
  AddressSpace space(1024 * kMebibyte);
  space.release(space.allocate(10 * kMebibyte));
  char* second = space.allocate(12 * kMebibyte);
  EXPECT_EQ(offset(second), 10 * kMebibyte);
  space.release(second);
  EXPECT_EQ(offset(space.allocate(22 * kMebibyte)), 22 * kMebibyte);
}

TEST(AddressSpace, GivesEmptySegmentsBackWhenTheCapacityIsExceeded) {
  AddressSpace space(32 * kMebibyte);
  char* first = space.allocate(10 * kMebibyte);
  char* second = space.allocate(10 * kMebibyte);
  space.release(first);
  EXPECT_EQ(space.reserved(), 20 * kMebibyte);
  char* third = space.allocate(14 * kMebibyte);
  EXPECT_EQ(space.reserved(), 24 * kMebibyte);
  EXPECT_EQ(space.peak_reserved(), 24 * kMebibyte);
  // The gap in front is too small for it, and large enough for the next one.
  EXPECT_EQ(offset(third), 20 * kMebibyte);
  EXPECT_EQ(space.allocate(10 * kMebibyte), first);
  space.release(second);
}

TEST(AddressSpaceDeathTest, AllowsNoAccess) {
  AddressSpace space(1024 * kMebibyte);
  volatile char* bytes = space.allocate(512);
  EXPECT_DEATH(bytes[0] = 1, "");
}

}  // namespace
}  // namespace accelerate::simulator
