/// Operations on the tensors of a tree (see tree.h) that need no other ranks: find, send, convert,
/// cut, pad, join.
///
/// All functions are local, work on static trees and on c10::IValue alike, and give the tree back
/// with its containers as they were: what HF Accelerate's honor_type is for follows from the types.
/// Undefined tensors are passed through unless said otherwise.
/// Errors: c10::ValueError naming the operation and what is wrong with which type of leaf.
/// Threads: functions of their arguments.
/// Mirrors: accelerate utils/operations.py, and utils/dataclasses.py, TensorInformation.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include "accelerate/tensors/tree.h"

namespace accelerate {

struct TensorSlice;

namespace internal {

[[noreturn]] void throw_unsupported_leaf(const char* operation, const std::string& type);
/// As users know it: "Tensor", "str", "int", "None", ...
std::string leaf_type(const c10::IValue& leaf);

at::Tensor send_tensor(const at::Tensor& tensor, c10::Device device, bool non_blocking);
c10::IValue send_ivalue(const c10::IValue& value, c10::Device device, bool non_blocking,
                        const std::vector<std::string>& skip_keys);
at::Tensor tensor_to_fp32(const at::Tensor& tensor);
/// The tensor in that dtype if it has floating-point numbers, else itself.
at::Tensor with_dtype(const at::Tensor& tensor, at::ScalarType dtype);
at::Tensor slice_rows_of_tensor(const at::Tensor& tensor, const TensorSlice& slice);
at::Tensor structure_of(const at::Tensor& tensor);
at::Tensor empty_like_structure(const at::Tensor& structure, c10::Device device);
at::Tensor pad_input_tensor(const at::Tensor& tensor, int64_t batch_size, int num_processes,
                            int64_t dim);

// Calls fn(type's name) for each leaf that is not a tensor.
template <typename T, typename Fn>
void visit_other_leaves(const T& value, Fn& fn) {
  if constexpr (std::is_same_v<T, c10::IValue>) {
    visit_ivalue_leaves(value, [&fn](const c10::IValue& leaf) {
      if (!leaf.isTensor()) fn(leaf_type(leaf));
    });
  } else if constexpr (kHasChildren<T>) {
    for_each_child(value, [&fn](const auto& child) { visit_other_leaves(child, fn); });
  } else if constexpr (!std::is_same_v<T, at::Tensor>) {
    fn(std::string(c10::demangle_type<T>()));
  }
}

}  // namespace internal

/// Errors: c10::ValueError naming the type of a leaf that is not a tensor.
template <typename Tree>
void expect_only_tensors(const Tree& tree, const char* operation) {
  auto refuse = [operation](const std::string& type) {
    internal::throw_unsupported_leaf(operation, type);
  };
  internal::visit_other_leaves(tree, refuse);
}

inline bool is_torch_tensor(const c10::IValue& leaf) { return leaf.isTensor(); }

/// Whether a tensor is on an Intel GPU.
inline bool is_torch_xpu_tensor(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_xpu();
}

struct RecursivelyApplyOptions {
  /// Which leaves the function is for; null: all tensors.
  std::function<bool(const c10::IValue& leaf)> test_type = nullptr;
  /// Whether another leaf is an error instead of being passed through.
  bool error_on_other_type = false;
};

/// The tree with func(tensor) for each tensor that `test_type` accepts.
/// Errors: c10::ValueError naming the type of another leaf, with `error_on_other_type`.
template <typename Fn, typename Tree>
  requires std::is_invocable_r_v<at::Tensor, Fn&, const at::Tensor&>
Tree recursively_apply(Fn&& func, Tree data, const RecursivelyApplyOptions& options = {}) {
  if (options.error_on_other_type) expect_only_tensors(data, "recursively_apply");
  return tree_map(std::move(data), [&](const at::Tensor& tensor) -> at::Tensor {
    if (!options.test_type || options.test_type(tensor)) return func(tensor);
    if (options.error_on_other_type) {
      internal::throw_unsupported_leaf("recursively_apply", "Tensor");
    }
    return tensor;
  });
}

/// The same for leaves of any type, in a dynamic value: `func` takes and returns a c10::IValue.
template <typename Fn>
  requires std::is_invocable_r_v<c10::IValue, Fn&, const c10::IValue&>
c10::IValue recursively_apply(Fn&& func, const c10::IValue& data,
                              const RecursivelyApplyOptions& options = {}) {
  return internal::map_ivalue_leaves(data, [&](const c10::IValue& leaf) -> c10::IValue {
    if (options.test_type ? options.test_type(leaf) : leaf.isTensor()) return func(leaf);
    if (options.error_on_other_type) {
      internal::throw_unsupported_leaf("recursively_apply", internal::leaf_type(leaf));
    }
    return leaf;
  });
}

/// The size of dim 0 of the first tensor that has one; nothing where no tensor has.
template <typename Tree>
std::optional<int64_t> ignorant_find_batch_size(const Tree& data) {
  std::optional<int64_t> size;
  tree_for_each(data, [&size](const at::Tensor& tensor) {
    if (!size && tensor.defined() && tensor.dim() > 0) size = tensor.size(0);
  });
  return size;
}

/// As ignorant_find_batch_size. Errors: c10::ValueError where no tensor has a dim 0.
template <typename Tree>
int64_t find_batch_size(const Tree& data) {
  const std::optional<int64_t> size = ignorant_find_batch_size(data);
  TORCH_CHECK_VALUE(size.has_value(),
                    "find_batch_size: there is no tensor with a batch dimension in it");
  return *size;
}

/// The first tensor's device; absent if the tree has no tensor.
template <typename Tree>
std::optional<c10::Device> find_device(const Tree& data) {
  std::optional<c10::Device> device;
  tree_for_each(data, [&device](const at::Tensor& tensor) {
    if (!device && tensor.defined()) device = tensor.device();
  });
  return device;
}

struct SendToDeviceOptions {
  /// The host does not wait for copies from page-locked memory.
  bool non_blocking = false;
  /// The entries of maps and dicts under these keys stay where they are.
  std::vector<std::string> skip_keys = {};
};

namespace internal {

// Whether a T moves its tensors by itself.
template <typename T>
concept HasOwnTo = std::is_class_v<T> && requires(const T& value, c10::Device device) {
  { value.to(device) } -> std::same_as<T>;
};

template <typename T>
void send_in_place(T& value, c10::Device device, const SendToDeviceOptions& options) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    value = send_tensor(value, device, options.non_blocking);
  } else if constexpr (HasOwnTo<T>) {
    if constexpr (requires { value.to(device, options.non_blocking); }) {
      value = value.to(device, options.non_blocking);
    } else {
      value = value.to(device);
    }
  } else if constexpr (std::is_same_v<T, c10::IValue>) {
    value = send_ivalue(value, device, options.non_blocking, options.skip_keys);
  } else if constexpr (kIsMap<T>) {
    for (auto& [key, element] : value) {
      if constexpr (std::is_convertible_v<decltype(key), std::string>) {
        const auto& skipped = options.skip_keys;
        if (std::find(skipped.begin(), skipped.end(), key) != skipped.end()) continue;
      }
      send_in_place(element, device, options);
    }
  } else if constexpr (kHasChildren<T>) {
    for_each_child(value, [&](auto& child) { send_in_place(child, device, options); });
  } else if constexpr (kIsSequence<T>) {
    for (auto& element : value) send_in_place(element, device, options);
  }
}

}  // namespace internal

/// The tree with its tensors on `device`; those that are there already are the same ones. A leaf
/// with `T to(c10::Device) const`, such as LibTorch's PackedSequence, moves itself; where that
/// takes one, the second argument is `non_blocking`.
template <typename Tree>
Tree send_to_device(Tree tensor, c10::Device device, const SendToDeviceOptions& options = {}) {
  static_assert(!internal::kHoldsReferences<Tree>,
                "send_to_device of a tuple of references would change what they refer to");
  internal::send_in_place(tensor, device, options);
  return tensor;
}

/// Half-precision tensors (float16, bfloat16) as float32; other leaves as they are.
template <typename Tree>
Tree convert_to_fp32(Tree tensor) {
  return tree_map(std::move(tensor), internal::tensor_to_fp32);
}

/// A function whose result's half-precision tensors come as float32.
template <typename Function>
class ConvertOutputsToFp32 {
 public:
  explicit ConvertOutputsToFp32(Function function) : function_(std::move(function)) {}

  template <typename... Args>
  auto operator()(Args&&... args) {
    return convert_to_fp32(std::invoke(function_, std::forward<Args>(args)...));
  }

  /// The function as it was.
  const Function& model_forward() const { return function_; }

 private:
  Function function_;
};

/// \ref ConvertOutputsToFp32; `model_forward()` of it takes the conversion off again.
template <typename Function>
ConvertOutputsToFp32<std::decay_t<Function>> convert_outputs_to_fp32(Function&& model_forward) {
  return ConvertOutputsToFp32<std::decay_t<Function>>(std::forward<Function>(model_forward));
}

/// Rows [start, stop) by `step`, as in Python: negative counts from the end, and beyond the end is
/// the end.
struct TensorSlice {
  std::optional<int64_t> start = std::nullopt;
  std::optional<int64_t> stop = std::nullopt;
  int64_t step = 1;
};

/// The rows of each tensor; views. Other leaves are passed through. `process_index` and
/// `num_processes` say for which of how many ranks the slice is; they are for functions that
/// replace this one (slice_fn_for_dispatch), and change nothing here, as in HF Accelerate. Errors:
/// c10::ValueError for a tensor without rows, and for a step below 1.
template <typename Tree>
Tree slice_tensors(Tree data, const TensorSlice& tensor_slice,
                   std::optional<int> /*process_index*/ = std::nullopt,
                   std::optional<int> /*num_processes*/ = std::nullopt) {
  return tree_map(std::move(data), [&](const at::Tensor& tensor) {
    return internal::slice_rows_of_tensor(tensor, tensor_slice);
  });
}

/// Each tensor with its last row repeated until `num_processes` divides the rows. Shapes:
/// [batch_size, ...], the batch in dim `dim`; out [the next multiple of num_processes, ...].
/// Errors: c10::ValueError for leaves other than tensors, a tensor whose dim is not batch_size,
///         and a num_processes below 1.
/// Differs: HF Accelerate pads with zeros, and not always to a multiple; its documentation says
///          this.
template <typename Tree>
Tree pad_input_tensors(Tree tensor, int64_t batch_size, int num_processes, int64_t dim = 0) {
  expect_only_tensors(tensor, "pad_input_tensors");
  return tree_map(std::move(tensor), [=](const at::Tensor& leaf) {
    return internal::pad_input_tensor(leaf, batch_size, num_processes, dim);
  });
}

/// A tensor without its numbers. The structure of a tree is the same tree with tensors on the meta
/// device, which have no data; so it goes wherever trees go.
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

namespace internal {

void check_same_structure(bool same, const char* what);
at::Tensor concatenate_tensors(const std::vector<at::Tensor>& parts, int64_t dim);
c10::IValue concatenate_ivalues(const std::vector<c10::IValue>& parts, int64_t dim);

// Puts the parts' join into `whole`, which is a copy of the first part.
template <typename T>
void concatenate_into(T& whole, const std::vector<const T*>& parts, int64_t dim) {
  [[maybe_unused]] auto values = [&parts] {
    std::vector<T> copies;
    for (const T* part : parts) copies.push_back(*part);
    return copies;
  };
  [[maybe_unused]] auto check = [&parts](auto&& same, const char* what) {
    for (const T* part : parts) check_same_structure(same(*part), what);
  };
  // `child` is the whole's, child_of(part) the same one of a part.
  [[maybe_unused]] auto join = [&](auto& child, auto&& child_of) {
    std::vector<const std::remove_cvref_t<decltype(child)>*> children;
    for (const T* part : parts) children.push_back(&child_of(*part));
    concatenate_into(child, children, dim);
  };
  if constexpr (std::is_same_v<T, at::Tensor>) {
    whole = concatenate_tensors(values(), dim);
  } else if constexpr (std::is_same_v<T, c10::IValue>) {
    whole = concatenate_ivalues(values(), dim);
  } else if constexpr (kIsOptional<T>) {
    check([&](const T& part) { return part.has_value() == whole.has_value(); },
          "an optional value");
    if (whole) join(*whole, [](const T& part) -> auto& { return *part; });
  } else if constexpr (kIsMap<T>) {
    check([&](const T& part) { return part.size() == whole.size(); }, "keys");
    for (auto& entry : whole) {
      join(entry.second, [&](const T& part) -> auto& {
        auto found = part.find(entry.first);
        check_same_structure(found != part.end(), "keys");
        return found->second;
      });
    }
  } else if constexpr (kIsSequence<T> && !kIsList<T>) {
    check([&](const T& part) { return part.size() == whole.size(); }, "lengths");
    for (size_t i = 0; i < whole.size(); ++i) {
      join(whole[i], [i](const T& part) -> auto& { return part[i]; });
    }
  } else if constexpr (kHasMembers<T>) {
    auto members = members_of(whole);
    auto join_members = [&]<size_t... I>(std::index_sequence<I...> /*which*/) {
      (join(std::get<I>(members),
            [](const T& part) -> auto& { return std::get<I>(members_of(const_cast<T&>(part))); }),
       ...);
    };
    join_members(std::make_index_sequence<std::tuple_size_v<decltype(members)>>());
  } else if (parts.size() > 1) {
    throw_unsupported_leaf("concatenate", std::string(c10::demangle_type<T>()));
  }
}

}  // namespace internal

/// The trees' tensors, joined along `dim` at each place. A single tree is returned as it is.
/// Errors:  c10::ValueError for nothing to join, structures that differ, and leaves other
///          than tensors; c10::Error for tensors that do not fit.
/// Differs: structures must be equal; HF Accelerate leaves out what the first one does not have.
template <typename Tree>
Tree concatenate(const std::vector<Tree>& data, int64_t dim = 0) {
  TORCH_CHECK_VALUE(!data.empty(), "concatenate: there is nothing to join");
  Tree whole = data.front();
  if (data.size() == 1) return whole;
  std::vector<const Tree*> parts;
  parts.reserve(data.size());
  for (const Tree& part : data) parts.push_back(&part);
  internal::concatenate_into(whole, parts, dim);
  return whole;
}

}  // namespace accelerate
