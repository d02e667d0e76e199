/// Memory that a device's allocator keeps for reuse, and how to give it back; how much memory a
/// device has free, and whether that is the host's; and how much of it tensors of this process use.
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

struct DeviceMemoryUse;  // runtime.h

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

/// Makes `shares` the way to ask whether a device of this type, by its index, has its memory from
/// the host, as integrated GPUs do, in place of the one before. The value only serves static
/// initialisation.
bool register_shared_memory(c10::DeviceType type, std::function<bool(int index)> shares);

/// False where no way is registered, and for a device that does not answer. Local.
bool has_memory_of_host(c10::Device device);

/// Makes `use` the way to ask what tensors of this process use on a device of this type, by its
/// index, in place of the one before. The value only serves static initialisation.
bool register_device_memory(c10::DeviceType type, std::function<DeviceMemoryUse(int index)> use);

/// Absent where no way is registered, and for a device that does not answer. Local.
std::optional<DeviceMemoryUse> used_device_memory(c10::Device device);

}  // namespace accelerate
