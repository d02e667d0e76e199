/// A dataset held in tensors: sample i is row i of each.
///
///     TensorDataset dataset = make_tensor_dataset(images, labels);
///     for (auto& [images, labels] : DataLoader(dataset, {.batch_size = 32})) ...
///
/// Shapes:  the tensors [N, ...]; a batch of B samples is a tuple of tensors [B, ...].
/// Ownership: shares the tensors given; copies are cheap. A batch has memory of its own.
/// Threads: reading may happen on many threads.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>

namespace accelerate {
namespace internal {

// The size of dim 0 that all tensors have.
inline int64_t common_rows(c10::ArrayRef<at::Tensor> tensors) {
  std::vector<int64_t> sizes;
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.defined() && tensor.dim() > 0, "TensorDataset: tensor ", sizes.size(),
                      " has no rows; it is ", tensor.defined() ? "a scalar" : "undefined");
    sizes.push_back(tensor.size(0));
  }
  for (int64_t size : sizes) {
    TORCH_CHECK_VALUE(size == sizes[0],
                      "TensorDataset: the tensors differ in their rows: ", c10::IntArrayRef(sizes));
  }
  return sizes[0];
}

// The rows in a tensor of their own, on the device where `tensor` is.
inline at::Tensor gather_rows(const at::Tensor& tensor, const at::Tensor& indices) {
  if (tensor.device() == indices.device()) return tensor.index_select(0, indices);
  return tensor.index_select(0, indices.to(tensor.device()));
}

}  // namespace internal

template <size_t N>
class TensorDataset {
 public:
  static_assert(N > 0, "a TensorDataset needs a tensor");

  /// A tuple of N tensors.
  using Batch = decltype(std::tuple_cat(std::declval<std::array<at::Tensor, N>>()));

  /// Errors: c10::ValueError for a tensor without dim 0, and for sizes that differ there.
  explicit TensorDataset(std::array<at::Tensor, N> tensors)
      : size_(internal::common_rows(tensors)), tensors_(std::move(tensors)) {}

  /// How many samples there are.
  int64_t size() const { return size_; }

  const std::array<at::Tensor, N>& tensors() const { return tensors_; }

  /// The samples at `indices`, an integer vector [B]. Errors: c10::Error for an index out of range.
  Batch get_batch(const at::Tensor& indices) const {
    return std::apply(
        [&](const auto&... tensor) { return Batch(internal::gather_rows(tensor, indices)...); },
        tensors_);
  }

 private:
  int64_t size_;
  std::array<at::Tensor, N> tensors_;
};

/// The dataset of the tensors' rows. Errors: as the constructor's.
template <std::convertible_to<at::Tensor>... Tensors>
TensorDataset<sizeof...(Tensors)> make_tensor_dataset(Tensors&&... tensors) {
  return TensorDataset<sizeof...(Tensors)>(
      std::array<at::Tensor, sizeof...(Tensors)>{std::forward<Tensors>(tensors)...});
}

}  // namespace accelerate
