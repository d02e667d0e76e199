/// Inputs of column layers that ranks put together of sequence shards: in memory while a forward
/// pass uses them, and again from where the backward pass does.
///
/// Mechanism: a managed storage (operators/managed_storage.h), whose owner keeps the rank's part.
/// Threads:   those of a model's passes.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "accelerate/comm/process_group.h"

namespace accelerate {

/// A tensor with the values of `whole` in a dtype, and in its place in autograd's graph, that
/// drop_gathered takes out of memory. The next operator that uses it puts it together again along
/// `dim`, of `part`, which stays in memory; that is collective over `group`. Gradients are added up
/// in the dtype of `whole`.
/// \pre `whole` has been put together so. Both have a gradient.
/// Errors: c10::Error from that operator, if `part` has changed in place.
at::Tensor gathered_at_use(const at::Tensor& whole, at::ScalarType dtype, const at::Tensor& part,
                           int64_t dim, const ProcessGroupPtr& group);

/// Takes it out of memory, unless an operator uses it just now; leaves other tensors as they are.
/// Local.
void drop_gathered(const at::Tensor& whole);

}  // namespace accelerate
