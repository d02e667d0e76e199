/// Reducing memory by LibTorch's own kernels, so that every dtype and operator gives what it gives
/// on tensors, and what the simulator gives.
///
/// Errors:  none; whether a dtype can be reduced is checked before
/// (accelerate/comm/watch/collective_call.h). Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

namespace accelerate::internal {

struct Reduction {
  c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM;
  at::ScalarType dtype = at::kFloat;

  size_t element_size() const { return c10::elementSize(dtype); }
  /// total = total (op) value, element by element.
  void add(char* total, const char* value, int64_t numel) const;
  /// Makes the sum of `count` ranks an average, if that is what is wanted.
  void finish(char* total, int64_t numel, int count) const;
};

}  // namespace accelerate::internal
