/// Collectives on tensors and on trees of tensors (see accelerate/tensors/tree.h).
///
/// All functions are collective over `group`; every rank passes a tree of the same structure. A
/// null group stands for one rank alone and returns the input.
/// Tensors may be strided and of any dtype that has whole bytes; gradients do not flow. A tree of
/// several tensors takes a collective for each, in the order of their visit. Entries of maps and
/// dicts belong together by their keys, whatever the order of insertion.
/// Errors: c10::ValueError, on every rank alike, for leaves other than tensors, undefined and
///         sparse tensors and arguments out of range. c10::DistBackendError, or the backend's own
///         error, if ranks disagree or one is missing. Of the functions on trees it is a
///         c10::DistBackendError on every rank that names both shapes, dtypes or sets of keys, and
///         the ranks; but over another backend than Gloo across machines only in debug mode.
/// Mirrors: accelerate utils/operations.py.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include "absl/functional/function_ref.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/tensors/tree.h"
#include "accelerate/tensors/tree_operations.h"

namespace accelerate {

enum class Reduction {
  kSum,
  kMean,  ///< where it can be represented, also if the sum cannot
  kMax,
  kNone,  ///< HF Accelerate's "none", which sums
};

struct PadAcrossProcessesOptions {
  /// The dim that is made equal; a negative one counts from each tensor's end.
  int64_t dim = 0;
  /// The value of new entries. It must be a value of the tensor's dtype.
  c10::Scalar pad_index = 0;
  /// Whether new entries come first.
  bool pad_first = false;
};

// ---- One tensor.

/// Every rank's tensor, one after the other along dim 0, on every rank. A 0-dim tensor counts as
/// one row. Shapes: in [n, ...], the same on every rank; out [ranks * n, ...].
at::Tensor gather_tensor(const ProcessGroupPtr& group, const at::Tensor& tensor);

/// As gather_tensor for each of them, but ranks may have different numbers of rows, also none; out
/// [sum of n, ...]. Costs a second collective for the sizes, one for all tensors.
std::vector<at::Tensor> gather_ragged_tensors(const ProcessGroupPtr& group,
                                              const std::vector<at::Tensor>& tensors);

/// The ranks' tensors reduced, in a new tensor, and multiplied by `scale`. Truth values are summed
/// by "or". Errors: c10::ValueError for the mean of integers.
at::Tensor reduce_tensor(const ProcessGroupPtr& group, const at::Tensor& tensor,
                         Reduction reduction, double scale = 1.0);

/// Writes rank `from_process`'s tensor into the others' `tensor`, which has the same shape and
/// dtype.
void broadcast_tensor(const ProcessGroupPtr& group, const at::Tensor& tensor, int from_process = 0);

/// As broadcast_tensor for each of them, several to a collective. As long as it runs, it takes the
/// memory of the tensors once more, up to 250 MiB.
/// Mirrors: torch.distributed, _broadcast_coalesced.
void broadcast_tensors(const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors,
                       int from_process = 0);

/// `value` as rank 0 has it.
uint64_t broadcast_integer(const ProcessGroupPtr& group, uint64_t value);

// ---- Many tensors: means over ranks, a few large collectives for all of them.
//
// Tensors are packed into flat buffers by dtype and device; the next one is packed while one is on
// its way. Beyond the tensors it takes the memory of two buffers (25 MiB each, or the largest
// tensor). All ranks pass tensors of the same shapes and dtypes in the same order.
// Errors: c10::ValueError for tensors that have no mean (integers, undefined, sparse).

/// Puts the mean over ranks into each tensor.
void average_tensors(const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors);

/// Puts the mean over ranks into the gradients of those parameters that require them. A gradient
/// that some ranks lack is zero there, and they get the mean as well; one that all ranks lack stays
/// undefined. Sparse gradients become dense ones. Parameters may come several times. There is no
/// extra collective to find out which ranks have a gradient.
/// Mirrors: the all-reduce in accelerate optimizer.py, AcceleratedOptimizer.step, on XLA devices.
void average_gradients(const ProcessGroupPtr& group, const std::vector<at::Tensor>& parameters);

namespace internal {

// The same memory under a dtype of its size that all backends carry, for what only moves. The
// tensor has no flags; see without_flags.
at::Tensor as_carried(const at::Tensor& tensor);
// For all tensors at once: two ranks may need different sizes, but all know it from one collective.
std::vector<at::Tensor> pad_tensors_across_processes(const ProcessGroupPtr& group,
                                                     const std::vector<at::Tensor>& tensors,
                                                     const PadAcrossProcessesOptions& options);
void check_rank(const ProcessGroupPtr& group, const char* operation, int from_process);
// The scale where the rank computes on a TPU, else 1.
double scale_on_this_device(double scale);
// Runs the collectives of an operation on a tree of that shape, so that ranks whose trees have
// other keys, shapes or dtypes get an error before they exchange anything.
void run_on_tree(const ProcessGroupPtr& group, const char* operation, TreeShape shape,
                 absl::FunctionRef<void()> collectives);

// As above, with fn(tensor) for each tensor, by key.
template <typename Tree, typename Fn>
void visit_across_ranks(const ProcessGroupPtr& group, const char* operation, Tree& tree, Fn& fn) {
  static_assert(!kHoldsReferences<std::remove_const_t<Tree>>,
                "an operation on a tuple of references would change what they refer to");
  expect_only_tensors(tree, operation);
  if (!group) return visit_leaves(tree, fn, DictOrder::kKeys);
  TreeShape shape;
  describe_tree(std::as_const(tree), shape);
  run_on_tree(group, operation, std::move(shape),
              [&] { visit_leaves(tree, fn, DictOrder::kKeys); });
}

// The tree with fn(tensor) for each tensor.
template <typename Tree, typename Fn>
Tree map_across_ranks(const ProcessGroupPtr& group, const char* operation, Tree tree, Fn&& fn) {
  auto replace = [&fn](at::Tensor& tensor) { tensor = fn(std::as_const(tensor)); };
  visit_across_ranks(group, operation, tree, replace);
  return tree;
}

// The same; `fn` gives the results for all tensors together.
template <typename Tree, typename Fn>
Tree map_all_across_ranks(const ProcessGroupPtr& group, const char* operation, Tree tree, Fn&& fn) {
  static_assert(!kHoldsReferences<Tree>,
                "an operation on a tuple of references would change what they refer to");
  expect_only_tensors(tree, operation);
  std::vector<at::Tensor> tensors;
  auto collect = [&tensors](const at::Tensor& tensor) { tensors.push_back(tensor); };
  visit_leaves(std::as_const(tree), collect, DictOrder::kKeys);
  TreeShape shape;
  describe_tree(tree, shape);
  run_on_tree(group, operation, std::move(shape), [&] { tensors = fn(std::as_const(tensors)); });
  auto next = tensors.begin();
  auto replace = [&next](at::Tensor& tensor) { tensor = *next++; };
  visit_leaves(tree, replace, DictOrder::kKeys);
  return tree;
}

}  // namespace internal

// ---- Trees.

template <typename Tree>
Tree gather(const ProcessGroupPtr& group, Tree tensor) {
  if (!group) return tensor;
  return internal::map_across_ranks(
      group, "gather", std::move(tensor),
      [&](const at::Tensor& leaf) { return gather_tensor(group, leaf); });
}

template <typename Tree>
Tree gather_ragged(const ProcessGroupPtr& group, Tree tensor) {
  if (!group) return tensor;
  return internal::map_all_across_ranks(
      group, "gather_ragged", std::move(tensor),
      [&](const std::vector<at::Tensor>& leaves) { return gather_ragged_tensors(group, leaves); });
}

/// New tensors with the ranks' tensors reduced. `scale` multiplies them on TPUs, where gradients
/// are averaged so; elsewhere it has no effect, as in HF Accelerate.
/// Errors: c10::ValueError for the mean of integers over several ranks.
template <typename Tree>
Tree reduce(const ProcessGroupPtr& group, Tree tensor, Reduction reduction = Reduction::kMean,
            double scale = 1.0) {
  const double effective_scale = internal::scale_on_this_device(scale);
  return internal::map_across_ranks(group, "reduce", std::move(tensor),
                                    [&](const at::Tensor& leaf) {
                                      return reduce_tensor(group, leaf, reduction, effective_scale);
                                    });
}

/// Rank `from_process`'s tensors. They are written into the other ranks' tensors, which are
/// returned: tensors have the same shapes and dtypes everywhere.
template <typename Tree>
Tree broadcast(const ProcessGroupPtr& group, Tree tensor, int from_process = 0) {
  if (!group) return tensor;
  internal::check_rank(group, "broadcast", from_process);
  auto send = [&](const at::Tensor& leaf) { broadcast_tensor(group, leaf, from_process); };
  internal::visit_across_ranks(group, "broadcast", std::as_const(tensor), send);
  return tensor;
}

/// The tensors with dim `dim` padded to the size it has on the rank where it is largest, so that
/// they can be gathered. Tensors without that dim are returned as they are; so are nested tensors,
/// with a warning. One collective for the whole tree.
/// Errors: c10::ValueError if a tensor has the dim on some ranks only or another number of dims on
///         some, for it could not be gathered, or if its dtype does not have the value
///         `pad_index` and some rank must be padded.
/// Differs: the dtype stays; HF Accelerate's follows from tensor + pad_index, on those ranks that
///          are padded.
template <typename Tree>
Tree pad_across_processes(const ProcessGroupPtr& group, Tree tensor,
                          const PadAcrossProcessesOptions& options = {}) {
  expect_only_tensors(tensor, "pad_across_processes");
  if (!group) return tensor;
  return internal::map_all_across_ranks(
      group, "pad_across_processes", std::move(tensor), [&](const std::vector<at::Tensor>& leaves) {
        return internal::pad_tensors_across_processes(group, leaves, options);
      });
}

}  // namespace accelerate
