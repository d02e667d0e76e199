/// Collectives on tensors and on trees of tensors (see accelerate/util/tree.h).
///
/// All functions are collective over `group`; every rank passes a tree of the same structure. A
/// null group stands for one rank alone and returns the input.
/// Errors: c10::DistBackendError, or the backend's own error, if ranks disagree or one is missing.
/// Mirrors: accelerate utils/operations.py.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/util/tree.h"

namespace accelerate {

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

enum class Reduction { kSum, kMean };

/// Every rank's tensor, one after the other along dim 0, on every rank. A 0-dim tensor counts as
/// one row. Shapes: in [n, ...], the same on every rank; out [ranks * n, ...].
at::Tensor gather_tensor(const ProcessGroupPtr& group, const at::Tensor& tensor);

/// As gather_tensor, but ranks may have different numbers of rows; out [sum of n, ...]. Costs a
/// second collective for the sizes.
at::Tensor gather_ragged_tensor(const ProcessGroupPtr& group, const at::Tensor& tensor);

/// The sum or mean over ranks, in a new tensor. Errors: c10::ValueError for the mean of integers.
at::Tensor reduce_tensor(const ProcessGroupPtr& group, const at::Tensor& tensor,
                         Reduction reduction);

/// `value` as rank 0 has it.
uint64_t broadcast_integer(const ProcessGroupPtr& group, uint64_t value);

template <typename Tree>
Tree gather(const ProcessGroupPtr& group, Tree tree) {
  if (!group) return tree;
  return tree_map(std::move(tree),
                  [&](const at::Tensor& tensor) { return gather_tensor(group, tensor); });
}

template <typename Tree>
Tree gather_ragged(const ProcessGroupPtr& group, Tree tree) {
  if (!group) return tree;
  return tree_map(std::move(tree),
                  [&](const at::Tensor& tensor) { return gather_ragged_tensor(group, tensor); });
}

template <typename Tree>
Tree reduce(const ProcessGroupPtr& group, Tree tree, Reduction reduction) {
  return tree_map(std::move(tree), [&](const at::Tensor& tensor) {
    return reduce_tensor(group, tensor, reduction);
  });
}

}  // namespace accelerate
