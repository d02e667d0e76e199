/// The order in which one pass visits a dataset's samples: position -> index.
///
/// An order that is simply 0, 1, 2, … takes no memory, so that passing over a huge dataset, or
/// entering it in its middle, costs nothing.
/// Threads: immutable; share it freely.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace accelerate {

class IndexOrder {
 public:
  /// Visits nothing.
  IndexOrder() = default;

  /// 0, 1, …, size - 1. \pre size >= 0.
  static IndexOrder range(int64_t size);

  /// These indices. Errors: c10::ValueError unless it is a contiguous int64 vector on the CPU.
  explicit IndexOrder(at::Tensor indices);

  /// How many samples are visited.
  int64_t size() const { return size_; }

  /// Writes the indices at positions [begin, begin + count) to `out`. \pre They exist.
  void copy(int64_t begin, int64_t count, int64_t* out) const;

  /// int64 [size()] on the CPU.
  at::Tensor tensor() const;

 private:
  int64_t size_ = 0;
  at::Tensor indices_;  // undefined: a range
};

}  // namespace accelerate
