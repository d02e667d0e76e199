/// The allocators of simulated devices and of the host around them.
///
/// Once installed, an allocator of the simulator makes the memory of all CPU tensors. So memory
/// that a kernel allocates on behalf of a device is charged to that device, and a result moves
/// between host and device without a copy.
///
/// Threads: any, as with LibTorch's allocators; a ChargeScope acts on its own thread.
#pragma once

#include <utility>

#include <c10/core/Allocator.h>

#include "simulator/device/sim_device.h"

namespace accelerate::simulator {

/// Allocates on the current device.
c10::Allocator& device_allocator();
/// Allocates pinned host memory, from which copies to a device are asynchronous.
c10::Allocator& pinned_allocator();
bool is_pinned(const void* data);

/// The block of a device's or the host's memory from these allocators; null for other memory.
inline MemoryBlock* block_of(const c10::DataPtr& data) {
  if (data.get() == nullptr || data.get_deleter() != &DeviceMemory::release) return nullptr;
  return static_cast<MemoryBlock*>(data.get_context()) - 1;
}

/// Replaces LibTorch's CPU allocator for the rest of the process.
void install_host_allocator();

/// Charges host memory that this thread allocates to `device` for a scope; to none if it is null.
class ChargeScope {
 public:
  ChargeScope(SimDevice* device, const char* operation)
      : previous_device_(std::exchange(charged_device(), device)),
        previous_operation_(std::exchange(charged_operation(), operation)) {}
  ~ChargeScope() {
    charged_device() = previous_device_;
    charged_operation() = previous_operation_;
  }
  ChargeScope(const ChargeScope&) = delete;
  ChargeScope& operator=(const ChargeScope&) = delete;

  static SimDevice*& charged_device();
  static const char*& charged_operation();

 private:
  SimDevice* const previous_device_;
  const char* const previous_operation_;
};

}  // namespace accelerate::simulator
