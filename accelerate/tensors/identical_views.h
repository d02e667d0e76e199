/// Which tensors are one: what makes tensors tied, also those without memory.
///
/// Threads: any.
#pragma once

#include <ATen/core/Tensor.h>

namespace accelerate::internal {

/// Whether two tensors are the same elements of the same memory, in the same order. Memory on
/// "meta" has an identity as well.
bool are_identical_views(const at::Tensor& a, const at::Tensor& b);

}  // namespace accelerate::internal
