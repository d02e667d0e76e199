/// Gathers per-sample values from all shares of the data, without those of padded rows.
///
/// Collective over `group`, one rank of each share that has a batch; null for one share.
/// Mirrors: accelerate accelerator.py, gather_for_metrics.
/// Differs: exact also where ranks differ in rows, which costs one more collective of a few
/// numbers; lists may be anywhere in a tree; entries of maps and dicts belong together by their
/// keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/comm/objects.h"
#include "accelerate/comm/operations.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/tensors/tree.h"

namespace accelerate {
namespace internal {

/// The real rows of all ranks, in the order of the ranks, for each tensor.
std::vector<at::Tensor> gather_real_rows(const ProcessGroupPtr& group, const BatchRound& round,
                                         std::vector<at::Tensor> tensors);

template <Portable T>
std::vector<T> gather_real_entries(const ProcessGroupPtr& group, const BatchRound& round,
                                   std::vector<T> entries) {
  if (round.own_rows != BatchRound::kAll && static_cast<int64_t>(entries.size()) > round.own_rows) {
    entries.erase(entries.begin() + round.own_rows, entries.end());
  }
  return gather_object(group, std::move(entries));
}

template <typename Tree>
void gather_parts(const ProcessGroupPtr& group, const BatchRound& round, Tree& tree) {
  std::vector<at::Tensor> tensors;
  auto collect = [&tensors](const at::Tensor& tensor) { tensors.push_back(tensor); };
  visit_leaves(std::as_const(tree), collect, DictOrder::kKeys);
  tensors = gather_real_rows(group, round, std::move(tensors));
  auto next = tensors.begin();
  Overloaded gather{
      [&](at::Tensor& tensor) { tensor = std::move(*next++); },
      [&](LeafTag /*tag*/, auto& leaf) {
        using Leaf = std::remove_cvref_t<decltype(leaf)>;
        static_assert(kIsList<Leaf> && Portable<Leaf>,
                      "gather_for_metrics takes tensors and std::vectors of portable values with "
                      "an entry per sample; put a lone value into a std::vector");
        leaf = gather_real_entries(group, round, std::move(leaf));
      }};
  visit_leaves(tree, gather, DictOrder::kKeys);
}

c10::IValue gather_dynamic_for_metrics(const ProcessGroupPtr& group, const BatchRound& round,
                                       const c10::IValue& value, bool use_gather_object);
[[noreturn]] void throw_no_list_for_metrics();

}  // namespace internal

/// The real rows of all ranks, for each tensor and list in the tree. One rank gets its tree back.
/// A c10::IValue of tensors is a tree. In another one, each value of a dict is gathered by itself,
/// and a list, tuple or string has an entry per sample, gathered with gather_object.
/// With `use_gather_object` the value itself is a list with an entry per sample, of any type: a
/// std::vector, or a c10::IValue, where the rows of a tensor are entries.
/// Errors: c10::ValueError for a c10::IValue, or with `use_gather_object` a value of another type,
///         that has no entries.
template <typename Tree>
Tree gather_for_metrics(const ProcessGroupPtr& group, const BatchRound& round, Tree tree,
                        bool use_gather_object = false) {
  if (!group) return tree;
  if constexpr (std::is_same_v<Tree, c10::IValue>) {
    return internal::gather_dynamic_for_metrics(group, round, tree, use_gather_object);
  } else {
    if (use_gather_object) {
      if constexpr (internal::kIsVector<Tree> && Portable<Tree>) {
        return internal::gather_real_entries(group, round, std::move(tree));
      } else {
        internal::throw_no_list_for_metrics();
      }
    }
    internal::TreeShape shape;
    internal::describe_tree(std::as_const(tree), shape);
    internal::run_on_tree(group, "gather_for_metrics", std::move(shape),
                          [&] { internal::gather_parts(group, round, tree); });
    return tree;
  }
}

}  // namespace accelerate
