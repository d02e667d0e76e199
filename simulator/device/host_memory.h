/// The allocators of simulated devices and of the host around them.
///
/// Once installed, all CPU tensors come from an allocator of ours, so that what a kernel allocates
/// while it runs on behalf of a device is charged to that device, and so that a result can change
/// hands between host and device without being copied.
///
/// Threads: as LibTorch's allocators; what is charged is a matter of the calling thread.
#pragma once

#include <utility>

#include <c10/core/Allocator.h>

#include "simulator/device/sim_device.h"

namespace accelerate::simulator {

/// Allocates on the current device.
c10::Allocator& device_allocator();
/// Allocates host memory that copies to a device need not wait for.
c10::Allocator& pinned_allocator();
bool is_pinned(const void* data);

/// The block behind memory that one of these allocators made; null for anybody else's.
inline MemoryBlock* block_of(const c10::DataPtr& data) {
  if (data.get() == nullptr || data.get_deleter() != &DeviceMemory::release) return nullptr;
  return static_cast<MemoryBlock*>(data.get_context()) - 1;
}

/// Replaces LibTorch's CPU allocator for the rest of the process.
void install_host_allocator();

/// Host memory that this thread allocates meanwhile is charged to `device`; to nobody if null.
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
