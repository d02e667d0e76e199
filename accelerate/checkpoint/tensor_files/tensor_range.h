/// Elements of a tensor by their number, counted row by row, whatever its strides and device are.
///
/// Errors:  what LibTorch's copy throws.
/// Threads: any, for ranges that are disjoint.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace accelerate::internal {

/// Whether its elements lie in the CPU's memory as a file has them.
bool is_plain_memory(const at::Tensor& tensor);

/// `out`: contiguous, one dim; it gets the elements from number `first` on.
void read_range(const at::Tensor& tensor, int64_t first, const at::Tensor& out);

/// `values`: contiguous, one dim; of any dtype and device.
void write_range(const at::Tensor& tensor, int64_t first, const at::Tensor& values);

}  // namespace accelerate::internal
