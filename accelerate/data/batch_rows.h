/// Batches as rows: counting, cutting and joining them, whatever they are made of.
///
/// A row is one sample's share: row i of each tensor in the batch (see tensors/tree.h), and entry i
/// of each list (a std::vector of what holds no tensors). A batch that is a std::vector of
/// torch::data's examples is a list of samples itself: it was not stacked. Other leaves belong to
/// the batch as a whole.
/// Threads: functions of their arguments.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>

#include "accelerate/tensors/tree.h"

namespace accelerate {
namespace internal {

template <typename Batch>
constexpr bool kIsListOfSamples = false;
template <typename T, typename Allocator>
constexpr bool kIsListOfSamples<std::vector<T, Allocator>> =
    !kMayHoldTensors<T> || (!HasTreeMembers<T> && (IsExample<T> || IsUnlabelledExample<T>));

template <typename T>
std::vector<T> slice_list(const std::vector<T>& list, int64_t begin, int64_t end) {
  const auto size = static_cast<int64_t>(list.size());
  return std::vector<T>(list.begin() + std::min(begin, size), list.begin() + std::min(end, size));
}

inline at::Tensor slice_tensor(const at::Tensor& tensor, int64_t begin, int64_t end) {
  if (!tensor.defined() || tensor.dim() == 0) return tensor;
  const int64_t rows = tensor.size(0);
  const int64_t from = std::min(begin, rows);
  return tensor.narrow(0, from, std::min(end, rows) - from);
}

// Calls `on_tensor` with each tensor and `on_list` with each list, which are const where the batch
// is.
template <typename Batch, typename OnTensor, typename OnList>
void visit_rows(Batch& batch, OnTensor on_tensor, OnList on_list) {
  Overloaded visitor{std::move(on_tensor), [&on_list](LeafTag /*tag*/, auto& leaf) {
                       if constexpr (kIsList<std::remove_cvref_t<decltype(leaf)>>) on_list(leaf);
                     }};
  visit_leaves(batch, visitor);
}

// The tensors, or the lists of one type, in the order of their visit.
template <typename Leaf, typename Batch>
std::vector<const Leaf*> leaves_of_type(const Batch& batch) {
  std::vector<const Leaf*> found;
  const auto collect = [&found](const auto& leaf) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(leaf)>, Leaf>) {
      found.push_back(&leaf);
    }
  };
  visit_rows(batch, [&](const at::Tensor& tensor) { collect(tensor); }, collect);
  return found;
}

template <typename Batch>
size_t number_of_lists(const Batch& batch) {
  size_t lists = 0;
  visit_rows(batch, [](const at::Tensor& /*tensor*/) {}, [&](const auto& /*list*/) { ++lists; });
  return lists;
}

// The entries of the list that stands in each batch where `leaf` stands in `whole`.
template <typename Leaf, typename Batch>
Leaf joined_list(const Leaf& leaf, const Batch& whole, const std::vector<Batch>& batches) {
  const auto lists = leaves_of_type<Leaf>(whole);
  const auto number =
      static_cast<size_t>(std::find(lists.begin(), lists.end(), &leaf) - lists.begin());
  Leaf joined;
  for (const Batch& batch : batches) {
    const Leaf& part = *leaves_of_type<Leaf>(batch).at(number);
    joined.insert(joined.end(), part.begin(), part.end());
  }
  return joined;
}

}  // namespace internal

/// How many rows a batch has; nothing where it has neither tensors with rows nor lists.
template <typename Batch>
std::optional<int64_t> batch_rows(const Batch& batch) {
  if constexpr (internal::kIsListOfSamples<Batch>) {
    return static_cast<int64_t>(batch.size());
  } else {
    std::optional<int64_t> rows;
    internal::visit_rows(
        batch,
        [&rows](const at::Tensor& tensor) {
          if (!rows && tensor.defined() && tensor.dim() > 0) rows = tensor.size(0);
        },
        [&rows](const auto& list) {
          if (!rows) rows = static_cast<int64_t>(list.size());
        });
    return rows;
  }
}

/// Rows [begin, end) of a batch, as far as they exist. Tensors are views.
template <typename Batch>
Batch slice_rows(Batch batch, int64_t begin, int64_t end) {
  if constexpr (internal::kIsListOfSamples<Batch>) {
    return internal::slice_list(batch, begin, end);
  } else {
    internal::visit_rows(
        batch, [&](at::Tensor& tensor) { tensor = internal::slice_tensor(tensor, begin, end); },
        [&](auto& list) { list = internal::slice_list(list, begin, end); });
    return batch;
  }
}

/// The batches' rows, one batch after the other. Other leaves are the first batch's.
/// Errors: c10::ValueError if there is no batch or if they differ in structure; c10::Error for
///         tensors that differ in more than their rows.
template <typename Batch>
Batch concatenate_rows(std::vector<Batch> batches) {
  TORCH_CHECK_VALUE(!batches.empty(), "there are no batches to join");
  if (batches.size() == 1) return std::move(batches[0]);
  if constexpr (internal::kIsListOfSamples<Batch>) {
    Batch all;
    for (Batch& batch : batches) {
      std::move(batch.begin(), batch.end(), std::back_inserter(all));
    }
    return all;
  } else {
    std::vector<std::vector<const at::Tensor*>> tensors;
    for (const Batch& batch : batches) {
      tensors.push_back(internal::leaves_of_type<at::Tensor>(batch));
      TORCH_CHECK_VALUE(tensors.back().size() == tensors.front().size(),
                        "batches of different structures cannot be joined: one has ",
                        tensors.front().size(), " tensors, another ", tensors.back().size());
      const size_t lists = internal::number_of_lists(batches.front());
      TORCH_CHECK_VALUE(internal::number_of_lists(batch) == lists,
                        "batches of different structures cannot be joined: one has ", lists,
                        " lists, another ", internal::number_of_lists(batch));
    }
    Batch whole = batches.front();
    size_t number = 0;
    internal::visit_rows(
        whole,
        [&](at::Tensor& tensor) {
          const size_t i = number++;
          if (!tensor.defined() || tensor.dim() == 0) return;
          std::vector<at::Tensor> parts;
          for (const auto& of_batch : tensors) parts.push_back(*of_batch[i]);
          tensor = at::cat(parts);
        },
        [&](auto& list) { list = internal::joined_list(list, whole, batches); });
    return whole;
  }
}

}  // namespace accelerate
