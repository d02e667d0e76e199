/// Untouched host memory for large tensors that are about to be filled.
///
/// Threads: any.
#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::internal {

/// An uninitialised CPU tensor. Where it is large, its memory comes in large pages if the system
/// has some, which makes the first touch several times faster.
at::Tensor fresh_tensor(at::IntArrayRef sizes, at::TensorOptions options);

}  // namespace accelerate::internal
