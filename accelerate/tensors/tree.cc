#include "accelerate/tensors/tree.h"

#include <utility>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

namespace accelerate::internal {
namespace {

using MapIValue = absl::FunctionRef<c10::IValue(const c10::IValue&)>;

// Lists of numbers and booleans cannot hold a tensor.
bool is_plain_list(const c10::IValue& value) {
  return value.isIntList() || value.isDoubleList() || value.isBoolList() ||
         value.isComplexDoubleList();
}

// The type of elements that were of type `type` before a function took their place.
c10::TypePtr type_after(const c10::TypePtr& type, bool same_kinds) {
  return same_kinds ? type : c10::TypePtr(c10::AnyType::get());
}

bool same_kind(const c10::IValue& a, const c10::IValue& b) {
  if (a.isList() && b.isList()) return *a.toList().elementType() == *b.toList().elementType();
  if (a.isGenericDict() && b.isGenericDict()) {
    return *a.toGenericDict().valueType() == *b.toGenericDict().valueType();
  }
  return a.tagKind() == b.tagKind();
}

c10::IValue map_tuple(const c10::ivalue::Tuple& tuple, MapIValue fn) {
  std::vector<c10::IValue> elements;
  elements.reserve(tuple.elements().size());
  bool same_kinds = true;
  for (const c10::IValue& element : tuple.elements()) {
    elements.push_back(fn(element));
    same_kinds = same_kinds && same_kind(element, elements.back());
  }
  std::shared_ptr<c10::TupleType> type = tuple.type();
  if (same_kinds && type->schema() != nullptr) {
    return c10::ivalue::Tuple::createNamed(std::move(elements), std::move(type));
  }
  return c10::ivalue::Tuple::create(std::move(elements));
}

c10::IValue map_list(const c10::impl::GenericList& list, MapIValue fn) {
  std::vector<c10::IValue> elements;
  elements.reserve(list.size());
  bool same_kinds = true;
  for (size_t i = 0; i < list.size(); ++i) {
    const c10::IValue element = list.get(i);
    elements.push_back(fn(element));
    same_kinds = same_kinds && same_kind(element, elements.back());
  }
  c10::impl::GenericList mapped(type_after(list.elementType(), same_kinds));
  mapped.reserve(elements.size());
  for (c10::IValue& element : elements) mapped.push_back(std::move(element));
  return mapped;
}

c10::IValue map_dict(const c10::impl::GenericDict& dict, MapIValue fn) {
  std::vector<std::pair<c10::IValue, c10::IValue>> entries;
  entries.reserve(dict.size());
  bool same_kinds = true;
  for (const auto& entry : dict) {
    entries.emplace_back(entry.key(), fn(entry.value()));
    same_kinds = same_kinds && same_kind(entry.value(), entries.back().second);
  }
  c10::impl::GenericDict mapped(dict.keyType(), type_after(dict.valueType(), same_kinds));
  mapped.reserve(entries.size());
  for (auto& [key, element] : entries) mapped.insert(std::move(key), std::move(element));
  return mapped;
}

bool has_children(const c10::IValue& value) {
  return value.isTuple() || value.isGenericDict() || value.isList();
}

void for_each_child(const c10::IValue& value, absl::FunctionRef<void(const c10::IValue&)> fn) {
  if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) fn(element);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) fn(entry.value());
  } else {
    for (const c10::IValue& element : value.toListRef()) fn(element);
  }
}

c10::IValue with_tensors_changed(const c10::IValue& value,
                                 absl::FunctionRef<void(at::Tensor&)> fn) {
  c10::IValue changed = value;
  visit_ivalue(changed, fn);
  return changed;
}

}  // namespace

void visit_ivalue(c10::IValue& value, absl::FunctionRef<void(at::Tensor&)> fn) {
  if (value.isTensor()) {
    at::Tensor tensor = std::move(value).toTensor();
    fn(tensor);
    value = std::move(tensor);
  } else if (has_children(value) && !is_plain_list(value)) {
    value = map_ivalue_children(
        value, [fn](const c10::IValue& child) { return with_tensors_changed(child, fn); });
  }
}

void visit_ivalue(const c10::IValue& value, absl::FunctionRef<void(const at::Tensor&)> fn) {
  if (value.isTensor()) {
    fn(value.toTensor());
  } else if (has_children(value) && !is_plain_list(value)) {
    for_each_child(value, [fn](const c10::IValue& child) { visit_ivalue(child, fn); });
  }
}

void visit_ivalue_leaves(const c10::IValue& value, absl::FunctionRef<void(const c10::IValue&)> fn) {
  if (!has_children(value)) return fn(value);
  for_each_child(value, [fn](const c10::IValue& child) { visit_ivalue_leaves(child, fn); });
}

c10::IValue map_ivalue_children(const c10::IValue& value, MapIValue fn) {
  if (value.isTuple()) return map_tuple(value.toTupleRef(), fn);
  if (value.isGenericDict()) return map_dict(value.toGenericDict(), fn);
  return value.isList() ? map_list(value.toList(), fn) : value;
}

c10::IValue map_ivalue_leaves(const c10::IValue& value, MapIValue fn) {
  if (!has_children(value)) return fn(value);
  return map_ivalue_children(
      value, [fn](const c10::IValue& child) { return map_ivalue_leaves(child, fn); });
}

}  // namespace accelerate::internal
