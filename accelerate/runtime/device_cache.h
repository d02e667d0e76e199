/// Memory that a device's allocator keeps for reuse, and how to give it back; and how much memory a
/// device has free.
///
/// Allocators of LibTorch do not share an interface for these, so each kind of device registers its
/// own way: CUDA's beside the NCCL backend (accelerate/comm/backends/nccl), which links it, and a
/// plug-in from one of its source files.
/// Threads: registration happens before main or while no other thread uses this; the rest: any.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>

namespace accelerate {

/// Makes `empty` the way to give back all unused memory of this process's allocator for devices of
/// this type, in place of the one before. The value only serves static initialisation.
bool register_device_cache(c10::DeviceType type, std::function<void()> empty);

/// Gives that memory back. Returns whether a way is registered. Local.
/// Errors: what the allocator throws.
bool release_device_cache(c10::DeviceType type);

/// Makes `free` the way to ask for the free bytes of a device of this type, by its index, in place
/// of the one before. The value only serves static initialisation.
bool register_free_memory(c10::DeviceType type, std::function<int64_t(int index)> free);

/// Absent where no way is registered, and for a device that does not answer. Local.
std::optional<int64_t> free_device_memory(c10::Device device);

}  // namespace accelerate
