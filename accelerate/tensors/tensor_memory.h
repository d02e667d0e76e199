/// Where tensors lie: untouched host memory, saved tensors for use, other memory for a tensor,
/// memory that holds a tensor's numbers as they are, and which tensors are one.
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

/// Complex numbers as pairs of real ones, which is what backends and optimizers take; other tensors
/// as they are. An alias, but of a tensor that has flags.
at::Tensor as_real(const at::Tensor& tensor);

/// Whether two tensors are the same elements of the same memory, in the same order, and so tied.
/// Memory on "meta" has an identity as well.
bool are_identical_views(const at::Tensor& a, const at::Tensor& b);

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
