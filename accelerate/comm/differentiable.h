/// Collectives with gradients: each is told by what moves forward and what moves backward.
///
/// Where ranks have the same tensor and each computes a part of what follows, the tensor enters by
/// `identity_forward_all_reduce_backward`, and sums leave by `all_reduce_forward_identity_backward`.
/// Where ranks have parts of a tensor, it is put together and divided by the other four. Parts are
/// in the order of ranks, of equal size along `dim`, and the ranks' tensors have the same dtype and
/// the same other sizes. Sums are made in the tensors' dtype, so half precision travels as such.
///
/// All functions are collective over `group`, where they or their gradients move anything; a null
/// group stands for one rank alone, which gets its input back. The call of the forward pass and
/// that of the backward pass are waited for on the current stream of the device; the host does not
/// wait. They are described with the CollectivePurpose that lives at the forward pass.
/// `dim` counts from the end if it is negative. A result has memory of its own, but for `identity`,
/// whose result is a view. A tensor that is moved into a function, and that no one else uses, lends
/// its memory to the result.
/// Errors:  c10::ValueError for a dim that the tensor does not have, or that ranks do not divide
///          evenly, with both numbers; c10::Error for a second derivative (backward with
///          create_graph); the backend's own where ranks disagree.
/// Threads: one at a time for each group. Backward passes are LibTorch's.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "accelerate/comm/process_group.h"

namespace accelerate {

/// The tensor; its gradient is the sum of the ranks' gradients.
at::Tensor identity_forward_all_reduce_backward(const at::Tensor& tensor,
                                                const ProcessGroupPtr& group);

/// The sum of the ranks' tensors, which has the same gradient on all ranks; so has each of them.
at::Tensor all_reduce_forward_identity_backward(at::Tensor tensor, const ProcessGroupPtr& group);

/// The ranks' parts put together along `dim`. Each rank goes on with the whole by itself, so the
/// gradient of a part is the sum of what ranks say of it (reduce-scatter).
/// Shapes: in [..., part, ...]; out [..., ranks * part, ...], contiguous.
at::Tensor all_gather_along(const at::Tensor& part, int64_t dim, const ProcessGroupPtr& group);

/// This rank's part along `dim` of the sum of the ranks' tensors. The gradient is put together of
/// the parts' gradients (all-gather).
/// Shapes: in [..., ranks * part, ...]; out [..., part, ...], contiguous.
at::Tensor reduce_scatter_along(const at::Tensor& whole, int64_t dim, const ProcessGroupPtr& group);

/// As all_gather_along, where what follows is the same on all ranks: the gradient of a part is that
/// part of the gradient, and nothing moves backward.
at::Tensor gather_along_split_backward(const at::Tensor& part, int64_t dim,
                                       const ProcessGroupPtr& group);

/// This rank's part along `dim` of a tensor that ranks have alike; nothing moves forward. The
/// gradient is put together of the parts' gradients (all-gather), the same on all ranks.
/// Shapes: as reduce_scatter_along.
at::Tensor split_along_gather_backward(const at::Tensor& whole, int64_t dim,
                                       const ProcessGroupPtr& group);

}  // namespace accelerate
