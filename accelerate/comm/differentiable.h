/// Collectives with gradients, named by what they do forward and what they do backward.
///
/// A tensor that all ranks have, and with which each rank computes a part of the result, passes
/// through identity_forward_all_reduce_backward; the sum of the partial results is
/// all_reduce_forward_identity_backward. The other functions gather a tensor from the ranks' parts,
/// divide a tensor among ranks, or divide it along another dim. Parts are in the order of ranks and
/// have equal sizes along `dim`; ranks pass tensors of the same sizes and dtype. Sums are computed
/// in that dtype, also in half precision.
///
/// Functions that communicate are collective over `group`, and so are backward passes that do. A
/// null group stands for one rank alone and returns the input. The current stream of the device
/// waits for the communication. A CollectivePurpose that lives around a call describes the call
/// and, after "gradient of", its backward pass. `dim` counts from the end if it is negative.
/// Results have memory of their own, but for the identity, whose result is a view of the input.
/// Errors:  c10::ValueError for a dim that the tensor does not have, and, with both numbers, for a
///          size that does not divide evenly among ranks: on this rank alone, before anything is
///          sent. c10::Error in a backward pass with create_graph, because second derivatives are
///          not computed. The backend's own if ranks disagree.
/// Threads: one call at a time for each group.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "accelerate/comm/process_group.h"

namespace accelerate {

/// The tensor itself, whose gradient is the sum of the ranks' gradients.
at::Tensor identity_forward_all_reduce_backward(const at::Tensor& tensor,
                                                const ProcessGroupPtr& group);

/// The sum of the ranks' tensors. The gradient of the sum, which all ranks have, is the gradient of
/// each tensor. A tensor that is moved in and has no other user lends its memory to the sum.
at::Tensor all_reduce_forward_identity_backward(at::Tensor tensor, const ProcessGroupPtr& group);

/// The whole, gathered from the ranks' parts. Each rank computes its own result from the whole, so
/// the gradient of a part is a sum over ranks: a reduce-scatter.
/// Shapes: in [..., part, ...]; out [..., ranks * part, ...].
at::Tensor all_gather_along(const at::Tensor& part, int64_t dim, const ProcessGroupPtr& group);

/// This rank's part of the sum of the ranks' tensors. The gradient is gathered from the gradients
/// of the parts: an all-gather.
/// Shapes: in [..., ranks * part, ...]; out [..., part, ...].
at::Tensor reduce_scatter_along(const at::Tensor& whole, int64_t dim, const ProcessGroupPtr& group);

/// As all_gather_along, if all ranks compute the same from the whole: the gradient of a part is its
/// part of the whole's gradient, and nothing is sent backward.
at::Tensor gather_along_split_backward(const at::Tensor& part, int64_t dim,
                                       const ProcessGroupPtr& group);

/// This rank's part of a tensor that all ranks have; nothing is sent forward. The gradient, which
/// all ranks get, is gathered from the gradients of the parts: an all-gather.
/// Shapes: as reduce_scatter_along.
at::Tensor split_along_gather_backward(const at::Tensor& whole, int64_t dim,
                                       const ProcessGroupPtr& group);

/// This rank's part along `split`, whole along `join`, of a tensor that is whole along `split` and
/// of which each rank has a part along `join`. Each rank sends every other rank its share, and
/// gradients go back in the same way.
/// Shapes: in [..., ranks * part, ..., size, ...]; out [..., part, ..., ranks * size, ...].
/// Errors: c10::ValueError for one dim in both places.
at::Tensor all_to_all_along(const at::Tensor& tensor, int64_t split, int64_t join,
                            const ProcessGroupPtr& group);

/// The mean over all ranks' tokens, from each rank's mean: the sum of mean x tokens, divided by the
/// sum of tokens. A rank without tokens contributes nothing, whatever its mean is; without any
/// tokens the result is 0. All ranks go on with the same result, so the gradient of a rank's mean
/// is the sum of the ranks' gradients: the result's gradient as many times as there are ranks,
/// which averages over ranks take back.
/// Shapes: `mean` floating-point, `tokens` integers, and the result: 0-dim. The result is of
/// `mean`'s dtype, or float32 where that is narrower.
/// Errors: c10::ValueError for other shapes and dtypes.
at::Tensor mean_over_tokens(const at::Tensor& mean, const at::Tensor& tokens,
                            const ProcessGroupPtr& group);

}  // namespace accelerate
