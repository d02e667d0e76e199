/// Elements of a tensor by their numbers, counted row by row, as a file has them.
///
/// Threads: any, for disjoint ranges.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>

#include "absl/types/span.h"

namespace accelerate::internal {

/// Bytes as a vector of elements, in place.
template <typename Byte>
at::Tensor as_tensor(absl::Span<Byte> bytes, at::ScalarType dtype) {
  const auto count = static_cast<int64_t>(bytes.size() / c10::elementSize(dtype));
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {count}, dtype);
}

/// Whether the tensor's elements lie in the CPU's memory as a file has them, and stay there.
bool is_plain_memory(const at::Tensor& tensor);

/// Copies elements of a tensor of any strides and device into `out`, a contiguous vector, from
/// number `first` on.
void read_range(const at::Tensor& tensor, int64_t first, const at::Tensor& out);

/// The same in the other direction.
void write_range(const at::Tensor& tensor, int64_t first, const at::Tensor& values);

/// Returns when what was begun before on the tensors' devices is done: threads that copy do not
/// share the caller's streams.
void wait_for_devices(absl::Span<const at::Tensor> tensors);

}  // namespace accelerate::internal
