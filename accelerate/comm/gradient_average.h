/// Means over ranks of many tensors, a few large collectives for all of them.
///
/// Tensors are packed into flat buffers by dtype and device; the next one is packed while one is on
/// its way. Beyond the tensors it takes the memory of two buffers (25 MiB each, or the largest
/// tensor).
/// Collective: all ranks pass tensors of the same shapes and dtypes in the same order. A null group
/// stands for one rank alone.
/// Errors: c10::ValueError for tensors that have no mean (integers, undefined, sparse);
///         c10::DistBackendError, or the backend's own error.
/// Threads: the rank's thread.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/comm/operations.h"

namespace accelerate {

/// Puts the mean over ranks into each tensor.
void average_tensors(const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors);

/// Puts the mean over ranks into the gradients of those parameters that require them. A gradient
/// that some ranks lack is zero there, and they get the mean as well; one that all ranks lack stays
/// undefined. Sparse gradients become dense ones. Parameters may come several times. There is no
/// extra collective to find out which ranks have a gradient.
/// Mirrors: the all-reduce in accelerate optimizer.py, AcceleratedOptimizer.step, on XLA devices.
void average_gradients(const ProcessGroupPtr& group, const std::vector<at::Tensor>& parameters);

}  // namespace accelerate
