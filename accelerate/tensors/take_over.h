/// Saved tensors as tensors that are used and changed.
#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::internal {

/// The tensor for use beside `parameter`: on its device, in `dtype`, and, with `like_parameter`, in
/// memory as it lies, else contiguous. It is the tensor itself where that is so already and it has
/// no other holder, else a copy.
at::Tensor take_over(at::Tensor tensor, const at::Tensor& parameter, at::ScalarType dtype,
                     bool like_parameter);

}  // namespace accelerate::internal
