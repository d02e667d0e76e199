#include "accelerate/runtime/device_cache.h"

#include <gtest/gtest.h>

namespace accelerate {
namespace {

TEST(DeviceCache, IsEmptiedInTheWayThatItsKindOfDeviceRegisteredLast) {
  int npu = 0, xpu_first = 0, xpu = 0;
  register_device_cache(c10::kPrivateUse1, [&] { ++npu; });
  register_device_cache(c10::kXPU, [&] { ++xpu_first; });
  register_device_cache(c10::kXPU, [&] { ++xpu; });
  EXPECT_TRUE(release_device_cache(c10::kXPU));
  EXPECT_TRUE(release_device_cache(c10::kXPU));
  EXPECT_TRUE(release_device_cache(c10::kPrivateUse1));
  EXPECT_EQ(npu, 1);
  EXPECT_EQ(xpu_first, 0);
  EXPECT_EQ(xpu, 2);
  EXPECT_FALSE(release_device_cache(c10::kMTIA)) << "without a way";
}

}  // namespace
}  // namespace accelerate
