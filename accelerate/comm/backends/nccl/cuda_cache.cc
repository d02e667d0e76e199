// The way to empty the cache of CUDA's allocator. Here, because this room links it.
#include <c10/cuda/CUDACachingAllocator.h>

#include "accelerate/runtime/device_cache.h"

namespace accelerate {
namespace {

const bool registered =
    register_device_cache(c10::kCUDA, [] { c10::cuda::CUDACachingAllocator::emptyCache(); });

}  // namespace
}  // namespace accelerate
