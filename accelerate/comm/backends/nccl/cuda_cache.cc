// The ways to empty the cache of CUDA's allocator, and to ask for a GPU's free and used memory.
// Here, because this room links CUDA.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include "accelerate/runtime/device_cache.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

const bool registered =
    register_device_cache(c10::kCUDA, [] { c10::cuda::CUDACachingAllocator::emptyCache(); });

const bool registered_free_memory = register_free_memory(c10::kCUDA, [](int index) -> int64_t {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
  size_t free = 0;
  size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
});

const bool registered_shared_memory = register_shared_memory(c10::kCUDA, [](int index) {
  int is_integrated = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&is_integrated, cudaDevAttrIntegrated, index));
  return is_integrated != 0;
});

const bool registered_memory_use = register_device_memory(c10::kCUDA, [](int index) {
  const auto device = static_cast<c10::DeviceIndex>(index);
  const c10::cuda::CUDAGuard guard(device);
  size_t free = 0;
  size_t total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  DeviceMemoryUse use = {.capacity = static_cast<int64_t>(total)};
  if (!c10::cuda::CUDACachingAllocator::get()->initialized()) return use;
  const auto bytes = c10::cuda::CUDACachingAllocator::getDeviceStats(device).allocated_bytes.at(0);
  use.in_use = bytes.current;
  use.peak = bytes.peak;
  return use;
});

}  // namespace
}  // namespace accelerate
