/// Where tensors lie: untouched host memory, saved tensors for use, other memory for a tensor, and
/// memory that holds a tensor's numbers as they are.
///
/// Threads: any.
#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::internal {

/// An uninitialised tensor. Where it is large and on the CPU, its memory comes in large pages if
/// the system has some, which makes the first touch several times faster.
at::Tensor fresh_tensor(at::IntArrayRef sizes, at::TensorOptions options);

/// The tensor, for code that reads its memory: a copy where a flag of it says that the memory holds
/// the numbers conjugated or negated, as that of `conj()` and of the imaginary part of such a view
/// does. `contiguous()`, `to()` and `cpu()` may leave the flag.
at::Tensor without_flags(const at::Tensor& tensor);

/// The tensor for use beside `parameter`: on its device, in `dtype`, and, with `like_parameter`, in
/// memory as it lies, else contiguous. It is the tensor itself where that is so already and it has
/// no other holder, else a copy.
at::Tensor conform_to_parameter(at::Tensor tensor, const at::Tensor& parameter,
                                at::ScalarType dtype, bool like_parameter);

/// Gives a tensor the memory, sizes, dtype and device of `values`, also across devices and from
/// "meta". It stays the same tensor, so whoever holds it sees them. It keeps requires_grad and
/// loses its gradient if that does not fit any more.
void rebind(const at::Tensor& tensor, const at::Tensor& values);

}  // namespace accelerate::internal
