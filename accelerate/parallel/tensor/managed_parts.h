/// Tensors of tensor parallelism whose storages are managed (operators/managed_storage.h).
///
/// Inputs of column layers that ranks gather from sequence shards: they are in memory while a
/// forward pass uses them, and ranks gather them again when the backward pass uses them. The owner
/// keeps the rank's part.
///
/// Features of which ranks have parts, as logits, once a model has given them to its caller: there
/// no handler sees operators, and those that need all features would silently take the part. The
/// owner sees what uses them.
/// Threads: gathered_at_use those of a model's passes, one at a time; the other functions any, also
///          while ranks gather.
#pragma once

#include <cstdint>
#include <string>

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

/// A tensor with the memory of `part`, and in its place in autograd's graph. An operator that needs
/// all features, as a cross-entropy, is a c10::ValueError: `text` follows the operator's name. The
/// tensor itself if its elements do not follow each other in memory. Local.
at::Tensor cut_output(const at::Tensor& part, std::string text);

}  // namespace accelerate
