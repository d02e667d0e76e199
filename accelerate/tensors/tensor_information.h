/// The structure of a tree without its numbers: each tensor's shape and dtype.
///
/// A structure is the same tree with tensors on the meta device, which have no data; so it goes
/// wherever trees go. All functions are local. Threads: functions of their arguments.
/// Mirrors: accelerate utils/operations.py, get_data_structure, initialize_tensors, and
///          utils/dataclasses.py, TensorInformation.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "accelerate/tensors/tree.h"

namespace accelerate {

struct TensorInformation {
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;

  bool operator==(const TensorInformation&) const = default;
};

/// Errors: c10::ValueError for an undefined tensor.
TensorInformation tensor_information(const at::Tensor& tensor);

/// Whether a tensor is a structure's: shape and dtype only.
inline bool is_tensor_information(const at::Tensor& tensor_info) {
  return tensor_info.defined() && tensor_info.is_meta();
}

namespace internal {
at::Tensor structure_of(const at::Tensor& tensor);
at::Tensor empty_like_structure(const at::Tensor& structure, c10::Device device);
}  // namespace internal

/// The tree with shapes and dtypes for tensors. Other leaves and undefined tensors stay.
template <typename Tree>
Tree get_data_structure(Tree data) {
  return tree_map(std::move(data), internal::structure_of);
}

/// A tree of that structure with tensors on `device`; what is in them is undefined.
template <typename Tree>
Tree initialize_tensors(Tree data_structure, c10::Device device = c10::kCPU) {
  return tree_map(std::move(data_structure), [device](const at::Tensor& structure) {
    return internal::empty_like_structure(structure, device);
  });
}

}  // namespace accelerate
