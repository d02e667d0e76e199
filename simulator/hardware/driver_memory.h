/// What the driver and the libraries of a device take of its memory, and how its caching allocator
/// is set: the model under `efficiency = measured`, for devices with CUDA's allocator. Under
/// `ideal`, and on all others, tensors have the whole memory of the data sheet.
///
/// driver_memory.cc names the source of every constant; README.md says how far to trust them.
///
/// Units: bytes; nanoseconds of the host.
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "simulator/hardware/device_model.h"

namespace accelerate::simulator {

struct DriverMemory {
  /// The total that the driver shows (cudaMemGetInfo).
  int64_t visible_bytes = 0;
  /// The process's context with the kernels that a small program loads.
  int64_t context_bytes = 0;
  /// What cuBLAS gets from the caching allocator for each of its handles and streams.
  int64_t product_workspace_bytes = 0;
  /// The host's time for a call of cudaMalloc and cudaFree, and to map or unmap a page of an
  /// expandable segment.
  int64_t malloc_ns = 0;
  int64_t free_ns = 0;
  int64_t map_ns = 0;
  int64_t unmap_ns = 0;
};

/// Nothing unless the device's efficiency is `measured`.
std::optional<DriverMemory> driver_memory_of(const DeviceModel& device);

/// A communicator of two ranks or more, as NCCL connects it.
struct CommunicatorShape {
  /// Those of one node, and whether there are others.
  int ranks_per_node = 0;
  bool spans_nodes = false;
  /// The channels of its rings; 0 where NCCL's model (network/nccl) has none.
  int channels = 0;
  /// The channels and heads of NVLS; 0 where it is not used.
  int nvls_channels = 0;
  int nvls_heads = 0;
};

/// What NCCL allocates on each member's device for the communicator: buffers of its rings, of NVLS
/// where that is used, and control structures. Not those of messages. 0 unless the device's
/// efficiency is `measured`.
int64_t communicator_bytes(const DeviceModel& device, const CommunicatorShape& shape);

/// Sets what the device's cluster text left open from settings of LibTorch's allocator, as in
/// PYTORCH_CUDA_ALLOC_CONF: "expandable_segments:True,max_split_size_mb:128". Settings without an
/// effect here are skipped, as is all under `ideal`. Returns the error, or nothing.
std::optional<std::string> apply_allocator_settings(absl::string_view settings,
                                                    DeviceModel& device);

namespace internal {

/// What was expected in the place of the device's memory; empty if tensors can have some of it.
std::string memory_problem(const DeviceModel& device);

/// What was expected in the place of the device's setting of that key ("expandable_segments",
/// "max_split_size"); empty if it may have it.
std::string allocator_problem(absl::string_view key, const DeviceModel& device);

}  // namespace internal
}  // namespace accelerate::simulator
