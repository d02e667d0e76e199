/// Whether the GPU multiplies fp8 itself.
///
/// Mirrors: accelerate utils/environment.py, check_cuda_fp8_capability.
#pragma once

#include "accelerate/runtime/runtime.h"

namespace accelerate {

/// Whether the rank's GPU, or the machine's first one if the rank computes elsewhere, multiplies
/// fp8: NVIDIA's from capability 8.9 on. The Runtime says so, or the GPU is asked with a small
/// product. Without it, layers in fp8 compute the same numbers in float32.
/// Local. Threads: any. Errors: none.
bool check_cuda_fp8_capability(const Runtime& runtime = Runtime::current());

}  // namespace accelerate
