/// The element-wise reductions of all backends that reduce tensors by themselves. Two such backends
/// give bitwise equal results if they add in the same order.
///
/// Errors:  LibTorch's, for a dtype that an operator does not have; backends check that before
///          (accelerate/comm/watch/collective_call.h).
/// Threads: pure functions.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace accelerate::internal {

/// total = total (op) value, element by element; an average begins as a sum. Shapes and dtypes are
/// equal. `op` is not PREMUL_SUM.
void accumulate(at::Tensor& total, const at::Tensor& value, c10d::ReduceOp::RedOpType op);

/// Makes the sum of `count` ranks their average; integers are rounded towards zero.
void average(at::Tensor& sum, int64_t count);

}  // namespace accelerate::internal
