/// Inputs of column layers that ranks gather from sequence shards. They are in memory while a
/// forward pass uses them, and ranks gather them again when the backward pass uses them.
///
/// Mechanism: a managed storage (operators/managed_storage.h), whose owner keeps the rank's part.
/// Threads:   those of a model's passes, one at a time; drop_gathered any, also while ranks gather.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "accelerate/comm/process_group.h"

namespace accelerate {

/// A tensor with the values of `whole` in a dtype, and in its place in autograd's graph, that
/// drop_gathered takes out of memory. The next operator that uses it gathers it again from `part`
/// along `dim`, collectively over `group`; `part` stays in memory. Gradients are added up in the
/// dtype of `whole`.
/// \pre `whole` was gathered from `part` in the same way. Both have a gradient.
/// Errors: c10::Error from that operator, if `part` has changed in place.
at::Tensor gathered_at_use(const at::Tensor& whole, at::ScalarType dtype, const at::Tensor& part,
                           int64_t dim, const ProcessGroupPtr& group);

/// Takes the result of gathered_at_use out of memory, unless an operator uses it at the moment;
/// other tensors stay as they are.
/// Local.
void drop_gathered(const at::Tensor& whole);

}  // namespace accelerate
