/// The part of a tensor that a box is (files/formats/boxes.h).
///
/// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "accelerate/files/formats/boxes.h"

namespace accelerate {

/// tensor[box], in the tensor's memory. A box without dims is the one element of any tensor that
/// has one.
inline at::Tensor box_view(at::Tensor tensor, const Box& box) {
  if (box.offsets.empty()) return tensor.dim() == 0 ? tensor : tensor.view(at::IntArrayRef());
  for (size_t dim = 0; dim < box.offsets.size(); ++dim) {
    tensor = tensor.narrow(static_cast<int64_t>(dim), box.offsets[dim], box.lengths[dim]);
  }
  return tensor;
}

}  // namespace accelerate
