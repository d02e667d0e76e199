#include "accelerate/tensors/tree_operations.h"

#include <algorithm>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>

namespace accelerate {

TensorInformation tensor_information(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined(), "an undefined tensor has no shape");
  return {.shape = tensor.sizes().vec(), .dtype = tensor.scalar_type()};
}

namespace internal {

void throw_unsupported_leaf(const char* operation, const std::string& type) {
  TORCH_CHECK_VALUE(false, operation, ": a leaf of type ", type,
                    " is not supported; only tensors in lists, tuples, maps and the like are");
}

std::string leaf_type(const c10::IValue& leaf) {
  if (leaf.isString()) return "str";
  return leaf.isTensor() ? "Tensor" : leaf.type()->str();
}

at::Tensor send_tensor(const at::Tensor& tensor, c10::Device device, bool non_blocking) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  return tensor.to(at::TensorOptions().device(device), non_blocking);
}

c10::IValue send_ivalue(const c10::IValue& value, c10::Device device, bool non_blocking,
                        const std::vector<std::string>& skip_keys) {
  auto send = [&](const c10::IValue& part) {
    return send_ivalue(part, device, non_blocking, skip_keys);
  };
  if (value.isTensor()) return send_tensor(value.toTensor(), device, non_blocking);
  if (!value.isGenericDict()) return map_ivalue_children(value, send);
  const c10::impl::GenericDict dict = value.toGenericDict();
  c10::impl::GenericDict sent(dict.keyType(), dict.valueType());
  sent.reserve(dict.size());
  for (const auto& entry : dict) {
    const bool skipped =
        entry.key().isString() &&
        std::find(skip_keys.begin(), skip_keys.end(), entry.key().toStringRef()) != skip_keys.end();
    sent.insert(entry.key(), skipped ? entry.value() : send(entry.value()));
  }
  return sent;
}

at::Tensor tensor_to_fp32(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const at::ScalarType dtype = tensor.scalar_type();
  // As in HF Accelerate, doubles and 8-bit numbers stay as they are.
  return dtype == at::kHalf || dtype == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
}

at::Tensor with_dtype(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.defined() && tensor.is_floating_point() ? tensor.to(dtype) : tensor;
}

at::Tensor slice_rows_of_tensor(const at::Tensor& tensor, const TensorSlice& slice) {
  if (!tensor.defined()) return tensor;
  TORCH_CHECK_VALUE(tensor.dim() > 0, "slice_tensors: a 0-dim tensor has no rows");
  TORCH_CHECK_VALUE(slice.step > 0, "slice_tensors: the step must be positive, got ", slice.step);
  return tensor.slice(0, slice.start, slice.stop, slice.step);
}

at::Tensor pad_input_tensor(const at::Tensor& tensor, int64_t batch_size, int num_processes,
                            int64_t dim) {
  constexpr const char* kName = "pad_input_tensors: ";
  TORCH_CHECK_VALUE(num_processes > 0, kName, "num_processes must be positive, got ",
                    num_processes);
  TORCH_CHECK_VALUE(tensor.defined(), kName, "a tensor is undefined");
  TORCH_CHECK_VALUE(dim >= -tensor.dim() && dim < tensor.dim(), kName, "dim ", dim,
                    " is out of range for a tensor of shape ", tensor.sizes());
  TORCH_CHECK_VALUE(tensor.size(dim) == batch_size, kName, "dim ", dim, " of a tensor of shape ",
                    tensor.sizes(), " is not the batch size ", batch_size);
  const int64_t missing = (num_processes - batch_size % num_processes) % num_processes;
  if (missing == 0) return tensor;
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape[static_cast<size_t>(dim < 0 ? dim + tensor.dim() : dim)] = missing;
  return at::cat({tensor, tensor.narrow(dim, batch_size - 1, 1).expand(shape)}, dim);
}

at::Tensor structure_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return at::empty(tensor.sizes(), at::device(c10::kMeta).dtype(tensor.scalar_type()));
}

at::Tensor empty_like_structure(const at::Tensor& structure, c10::Device device) {
  if (!is_tensor_information(structure)) return structure;
  return at::empty(structure.sizes(), at::device(device).dtype(structure.scalar_type()));
}

namespace {

size_t length_of(const c10::IValue& value) {
  if (value.isTuple()) return value.toTupleRef().elements().size();
  return value.isGenericDict() ? value.toGenericDict().size() : value.toList().size();
}

void check_same_kind(const std::vector<c10::IValue>& parts) {
  for (const c10::IValue& part : parts) {
    check_same_structure(part.tagKind() == parts[0].tagKind(), "types");
    if (part.isTensor()) continue;
    check_same_structure(length_of(part) == length_of(parts[0]), "lengths or keys");
  }
}

// The children of `value`, in the order of those of `first`, which is like it.
std::vector<c10::IValue> children_like(const c10::IValue& first, const c10::IValue& value) {
  if (value.isTuple()) return value.toTupleRef().elements().vec();
  if (value.isList()) return value.toListRef().vec();
  std::vector<c10::IValue> children;
  const c10::impl::GenericDict dict = value.toGenericDict();
  for (const auto& entry : first.toGenericDict()) {
    const auto found = dict.find(entry.key());
    check_same_structure(found != dict.end(), "keys");
    children.push_back(found->value());
  }
  return children;
}

}  // namespace

void check_same_structure(bool same, const char* what) {
  TORCH_CHECK_VALUE(same, "concatenate: values of different structures cannot be joined; they ",
                    "differ in ", what);
}

at::Tensor concatenate_tensors(const std::vector<at::Tensor>& parts, int64_t dim) {
  for (const at::Tensor& part : parts) {
    check_same_structure(part.defined() == parts[0].defined(), "undefined tensors");
  }
  return parts[0].defined() ? at::cat(parts, dim) : at::Tensor();
}

c10::IValue concatenate_ivalues(const std::vector<c10::IValue>& parts, int64_t dim) {
  const c10::IValue& first = parts[0];
  if (parts.size() == 1) return first;
  const bool container = first.isTuple() || first.isList() || first.isGenericDict();
  if (!first.isTensor() && !container) throw_unsupported_leaf("concatenate", leaf_type(first));
  check_same_kind(parts);
  if (first.isTensor()) {
    std::vector<at::Tensor> tensors;
    for (const c10::IValue& part : parts) tensors.push_back(part.toTensor());
    return concatenate_tensors(tensors, dim);
  }
  std::vector<std::vector<c10::IValue>> children;
  for (const c10::IValue& part : parts) children.push_back(children_like(first, part));
  size_t index = 0;
  return map_ivalue_children(first, [&](const c10::IValue& /*child*/) {
    std::vector<c10::IValue> of_child;
    for (const std::vector<c10::IValue>& of_part : children) of_child.push_back(of_part[index]);
    ++index;
    return concatenate_ivalues(of_child, dim);
  });
}

}  // namespace internal
}  // namespace accelerate
