#include "accelerate/tensors/concatenate.h"

#include <string>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/ops/cat.h>

#include "accelerate/tensors/tree_operations.h"

namespace accelerate::internal {
namespace {

// The place of a part in its container, as Part(container).
template <typename Place>
c10::IValue join_at(const std::vector<const c10::IValue*>& parts, int64_t dim, Place&& place) {
  std::vector<c10::IValue> elements;
  elements.reserve(parts.size());
  for (const c10::IValue* part : parts) elements.push_back(place(*part));
  std::vector<const c10::IValue*> of_parts;
  for (const c10::IValue& element : elements) of_parts.push_back(&element);
  return concatenate_ivalues(of_parts, dim);
}

size_t length_of(const c10::IValue& value) {
  if (value.isTuple()) return value.toTupleRef().elements().size();
  return value.isGenericDict() ? value.toGenericDict().size() : value.toList().size();
}

void check_same_kind(const std::vector<const c10::IValue*>& parts) {
  for (const c10::IValue* part : parts) {
    check_same_structure(part->tagKind() == parts[0]->tagKind(), "types");
    if (part->isTensor()) continue;
    check_same_structure(length_of(*part) == length_of(*parts[0]), "lengths or keys");
  }
}

c10::IValue concatenate_dicts(const std::vector<const c10::IValue*>& parts, int64_t dim) {
  const c10::impl::GenericDict first = parts[0]->toGenericDict();
  c10::impl::GenericDict joined(first.keyType(), first.valueType());
  for (const auto& entry : first) {
    joined.insert(entry.key(), join_at(parts, dim, [&](const c10::IValue& part) {
                    const c10::impl::GenericDict dict = part.toGenericDict();
                    auto found = dict.find(entry.key());
                    check_same_structure(found != dict.end(), "keys");
                    return found->value();
                  }));
  }
  return joined;
}

}  // namespace

void throw_not_concatenable(const std::string& type) {
  throw_unsupported_leaf("concatenate", type);
}

void check_same_structure(bool same, const char* what) {
  TORCH_CHECK_VALUE(same, "concatenate: values of different structures cannot be joined; they ",
                    "differ in ", what);
}

at::Tensor concatenate_tensors(const std::vector<const at::Tensor*>& parts, int64_t dim) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(parts.size());
  for (const at::Tensor* part : parts) {
    check_same_structure(part->defined() == parts[0]->defined(), "undefined tensors");
    if (part->defined()) tensors.push_back(*part);
  }
  return tensors.empty() ? at::Tensor() : at::cat(tensors, dim);
}

c10::IValue concatenate_ivalues(const std::vector<const c10::IValue*>& parts, int64_t dim) {
  const c10::IValue& first = *parts[0];
  if (parts.size() == 1) return first;
  const bool container = first.isTuple() || first.isList() || first.isGenericDict();
  if (!first.isTensor() && !container) throw_not_concatenable(leaf_type(first));
  check_same_kind(parts);
  if (first.isTensor()) {
    std::vector<at::Tensor> tensors;
    for (const c10::IValue* part : parts) tensors.push_back(part->toTensor());
    std::vector<const at::Tensor*> of_parts;
    for (const at::Tensor& tensor : tensors) of_parts.push_back(&tensor);
    return concatenate_tensors(of_parts, dim);
  }
  if (first.isGenericDict()) return concatenate_dicts(parts, dim);
  size_t index = 0;
  return map_ivalue_children(first, [&](const c10::IValue& /*child*/) {
    const size_t i = index++;
    return join_at(parts, dim, [i](const c10::IValue& part) -> c10::IValue {
      return part.isTuple() ? part.toTupleRef().elements()[i] : part.toList().get(i);
    });
  });
}

}  // namespace accelerate::internal
