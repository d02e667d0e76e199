/// Collectives with gradients, named by what they do forward and what they do backward.
///
/// Where ranks have the same tensor and each computes a part of what follows, the tensor enters by
/// identity_forward_all_reduce_backward, and sums of the parts leave by
/// all_reduce_forward_identity_backward. The other four put a tensor together of the ranks' parts,
/// or divide it. Parts come in the order of ranks and are of equal size along `dim`; ranks pass
/// tensors of the same sizes and dtype. A RowExchange moves rows between ranks, as many as they
/// say. Sums are made in that dtype, so half precision travels as it is.
///
/// All functions are collective over `group` where they move something, and so is the backward pass
/// of their results. A null group stands for one rank alone and returns the input. The current
/// stream of the device waits for what is moved. A CollectivePurpose that lives around a call
/// describes what the call moves and, after "gradient of", what its backward pass moves.
/// `dim` counts from the end if it is negative. Results have memory of their own, but for the
/// identity, whose result is a view of the input.
/// Errors:  c10::ValueError for a dim that the tensor does not have, and, with both numbers, for a
///          size that does not divide evenly among ranks: on this rank alone, before anything is
///          sent. c10::Error in a backward pass with create_graph, because second derivatives are
///          not computed. The backend's own if ranks disagree.
/// Threads: one call at a time for each group.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "accelerate/comm/process_group.h"

namespace accelerate {

/// The tensor itself, whose gradient is the sum of the ranks' gradients.
at::Tensor identity_forward_all_reduce_backward(const at::Tensor& tensor,
                                                const ProcessGroupPtr& group);

/// The sum of the ranks' tensors; its gradient, which ranks have alike, is the gradient of each. A
/// tensor that is moved in and that nothing else uses lends its memory to the sum.
at::Tensor all_reduce_forward_identity_backward(at::Tensor tensor, const ProcessGroupPtr& group);

/// The ranks' parts put together. Each rank computes something else with the whole, so the gradient
/// of a part is a sum over ranks: a reduce-scatter.
/// Shapes: in [..., part, ...]; out [..., ranks * part, ...].
at::Tensor all_gather_along(const at::Tensor& part, int64_t dim, const ProcessGroupPtr& group);

/// This rank's part of the sum of the ranks' tensors. The gradient is put together of the gradients
/// of the parts: an all-gather.
/// Shapes: in [..., ranks * part, ...]; out [..., part, ...].
at::Tensor reduce_scatter_along(const at::Tensor& whole, int64_t dim, const ProcessGroupPtr& group);

/// As all_gather_along where all ranks compute the same with the whole: the gradient of a part is
/// its part of the whole's gradient, and nothing is sent backward.
at::Tensor gather_along_split_backward(const at::Tensor& part, int64_t dim,
                                       const ProcessGroupPtr& group);

/// This rank's part of a tensor that ranks have alike; nothing is sent forward. The gradient is put
/// together of the gradients of the parts: an all-gather, after which ranks have it alike.
/// Shapes: as reduce_scatter_along.
at::Tensor split_along_gather_backward(const at::Tensor& whole, int64_t dim,
                                       const ProcessGroupPtr& group);

/// Rows of a tensor on their way to other ranks; their gradients travel back. Between the
/// constructor, which sends, and finish() the rank may compute something else.
class RowExchange {
 public:
  /// The first `give[0]` of `rows` go to the first rank of the group, the next ones to the second,
  /// and so on; from each rank come as many as `take` says. Collective; ranks agree on the sizes
  /// behind the rows, and on their numbers in pairs.
  /// Errors: c10::ValueError for numbers that are not one for each rank, or not those of the rows.
  RowExchange(const at::Tensor& rows, std::vector<int64_t> give, std::vector<int64_t> take,
              const ProcessGroupPtr& group);
  RowExchange(const RowExchange&) = delete;
  RowExchange& operator=(const RowExchange&) = delete;

  /// The rows that came, in the order of ranks. To be called once.
  at::Tensor finish();

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  at::Tensor sent_;  // until they have arrived
  at::Tensor rows_;
};

}  // namespace accelerate
