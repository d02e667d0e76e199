#include "accelerate/runtime/device_cache.h"

#include <stdexcept>

#include <gtest/gtest.h>

#include "accelerate/runtime/runtime.h"

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

TEST(FreeDeviceMemory, IsUnknownOfADeviceThatDoesNotAnswer) {
  register_free_memory(c10::kXPU, [](int index) -> int64_t {
    if (index == 1) throw std::runtime_error("device 1 is gone");
    return 100 + index;
  });
  EXPECT_EQ(free_device_memory(c10::Device(c10::kXPU)), 100);
  EXPECT_EQ(free_device_memory(c10::Device(c10::kXPU, 2)), 102);
  EXPECT_EQ(free_device_memory(c10::Device(c10::kXPU, 1)), std::nullopt);
  EXPECT_EQ(free_device_memory(c10::Device(c10::kMTIA, 0)), std::nullopt) << "without a way";
}

TEST(MemoryOfHost, IsThatOfNoDeviceThatDoesNotAnswer) {
  EXPECT_FALSE(has_memory_of_host(c10::Device(c10::kXPU))) << "without a way";
  register_shared_memory(c10::kXPU, [](int index) {
    if (index == 1) throw std::runtime_error("device 1 is gone");
    return index == 2;
  });
  EXPECT_FALSE(has_memory_of_host(c10::Device(c10::kXPU)));
  EXPECT_FALSE(has_memory_of_host(c10::Device(c10::kXPU, 1)));
  EXPECT_TRUE(has_memory_of_host(c10::Device(c10::kXPU, 2)));
}

TEST(UsedDeviceMemory, IsThatOfTheDeviceThatIsAsked) {
  EXPECT_EQ(used_device_memory(c10::Device(c10::kXPU, 0)).has_value(), false) << "without a way";
  register_device_memory(c10::kXPU, [](int index) -> DeviceMemoryUse {
    if (index == 1) throw std::runtime_error("device 1 is gone");
    return {.in_use = 10 + index, .peak = 20 + index, .capacity = 30 + index};
  });
  const auto second = used_device_memory(c10::Device(c10::kXPU, 2));
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->in_use, 12);
  EXPECT_EQ(second->peak, 22);
  EXPECT_EQ(second->capacity, 32);
  EXPECT_EQ(used_device_memory(c10::Device(c10::kXPU))->in_use, 10);
  EXPECT_FALSE(used_device_memory(c10::Device(c10::kXPU, 1)).has_value());
  EXPECT_FALSE(used_device_memory(c10::Device(c10::kMTIA, 0)).has_value());
}

}  // namespace
}  // namespace accelerate
