#include "accelerate/tensors/tree.h"

#include <algorithm>
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

bool same_kind(const c10::IValue& a, const c10::IValue& b) {
  if (a.isList() && b.isList()) return *a.toList().elementType() == *b.toList().elementType();
  if (a.isGenericDict() && b.isGenericDict()) {
    return *a.toGenericDict().valueType() == *b.toGenericDict().valueType();
  }
  return a.tagKind() == b.tagKind();
}

bool has_children(const c10::IValue& value) {
  return value.isTuple() || value.isGenericDict() || value.isList();
}

// An order of keys that depends on nothing but them.
bool comes_before(const c10::IValue& a, const c10::IValue& b) {
  if (a.isString() && b.isString()) return a.toStringRef() < b.toStringRef();
  if (a.isInt() && b.isInt()) return a.toInt() < b.toInt();
  if (a.isDouble() && b.isDouble()) return a.toDouble() < b.toDouble();
  if (a.isBool() && b.isBool()) return a.toBool() < b.toBool();
  return c10::str(a.tagKind(), " ", a) < c10::str(b.tagKind(), " ", b);
}

// The keys and values of a dict.
std::vector<std::pair<c10::IValue, c10::IValue>> entries_of(const c10::IValue& value,
                                                            DictOrder order) {
  std::vector<std::pair<c10::IValue, c10::IValue>> entries;
  for (const auto& entry : value.toGenericDict()) entries.emplace_back(entry.key(), entry.value());
  if (order == DictOrder::kKeys) {
    std::ranges::stable_sort(entries, comes_before, [](const auto& each) { return each.first; });
  }
  return entries;
}

void for_each_child(const c10::IValue& value, absl::FunctionRef<void(const c10::IValue&)> fn,
                    DictOrder order = DictOrder::kInsertion) {
  if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) fn(element);
  } else if (value.isGenericDict()) {
    for (const auto& [key, element] : entries_of(value, order)) fn(element);
  } else {
    for (const c10::IValue& element : value.toListRef()) fn(element);
  }
}

}  // namespace

void visit_ivalue(c10::IValue& value, absl::FunctionRef<void(at::Tensor&)> fn, DictOrder order) {
  if (value.isTensor()) {
    at::Tensor tensor = std::move(value).toTensor();
    fn(tensor);
    value = std::move(tensor);
  } else if (has_children(value) && !is_plain_list(value)) {
    value = map_ivalue_children(
        value,
        [fn, order](c10::IValue child) {
          visit_ivalue(child, fn, order);
          return child;
        },
        order);
  }
}

void visit_ivalue(const c10::IValue& value, absl::FunctionRef<void(const at::Tensor&)> fn,
                  DictOrder order) {
  if (value.isTensor()) {
    fn(value.toTensor());
  } else if (has_children(value) && !is_plain_list(value)) {
    for_each_child(
        value, [fn, order](const c10::IValue& child) { visit_ivalue(child, fn, order); }, order);
  }
}

void describe_ivalue(const c10::IValue& value, TreeShape& shape, const IsLeaf& is_leaf) {
  if (value.isTensor()) {
    shape.has_tensors = true;
    shape.text += "Tensor";
    return;
  }
  if (!has_children(value) || is_plain_list(value) || (is_leaf && is_leaf(value))) {
    shape.text += "value";
    return;
  }
  const char* separator = "";
  if (value.isGenericDict()) {
    shape.has_keys = true;
    shape.text += "{";
    for (const auto& [key, element] : entries_of(value, DictOrder::kKeys)) {
      shape.text += std::exchange(separator, ", ");
      shape.text += key.isString() ? key_text(key.toStringRef()) : c10::str(key);
      if (element.isTensor()) {
        shape.has_tensors = true;
        continue;
      }
      shape.text += ": ";
      describe_ivalue(element, shape, is_leaf);
    }
    shape.text += "}";
    return;
  }
  TreeShape parts{.text = value.isTuple() ? "(" : "["};
  for_each_child(value, [&](const c10::IValue& child) {
    parts.text += std::exchange(separator, ", ");
    describe_ivalue(child, parts, is_leaf);
  });
  parts.text += value.isTuple() ? ")" : "]";
  // Ranks may have different numbers of what is not exchanged.
  shape.text += parts.has_tensors || parts.has_keys ? parts.text : "value";
  shape.has_tensors = shape.has_tensors || parts.has_tensors;
  shape.has_keys = shape.has_keys || parts.has_keys;
}

void visit_ivalue_leaves(const c10::IValue& value, absl::FunctionRef<void(const c10::IValue&)> fn) {
  if (!has_children(value)) return fn(value);
  for_each_child(value, [fn](const c10::IValue& child) { visit_ivalue_leaves(child, fn); });
}

c10::IValue map_ivalue_children(const c10::IValue& value, MapIValue fn, DictOrder order) {
  if (!has_children(value)) return value;
  std::vector<c10::IValue> elements;
  bool same_kinds = true;
  for_each_child(
      value,
      [&](const c10::IValue& child) {
        elements.push_back(fn(child));
        same_kinds = same_kinds && same_kind(child, elements.back());
      },
      order);
  if (value.isTuple()) {
    std::shared_ptr<c10::TupleType> type = value.toTupleRef().type();
    // A named tuple keeps its type only while its fields do.
    if (same_kinds && type->schema() != nullptr) {
      return c10::ivalue::Tuple::createNamed(std::move(elements), std::move(type));
    }
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  // The type of elements that were of type `type` before `fn` took their place.
  auto type_after = [same_kinds](const c10::TypePtr& type) {
    return same_kinds ? type : c10::TypePtr(c10::AnyType::get());
  };
  if (value.isGenericDict()) {
    const c10::impl::GenericDict dict = value.toGenericDict();
    c10::impl::GenericDict mapped(dict.keyType(), type_after(dict.valueType()));
    mapped.reserve(elements.size());
    // Inserts the old entries first, so that the insertion order is kept.
    for (const auto& entry : dict) mapped.insert(entry.key(), entry.value());
    auto next = elements.begin();
    for (const auto& [key, element] : entries_of(value, order)) {
      mapped.insert_or_assign(key, std::move(*next++));
    }
    return mapped;
  }
  c10::impl::GenericList mapped(type_after(value.toList().elementType()));
  mapped.reserve(elements.size());
  for (c10::IValue& element : elements) mapped.push_back(std::move(element));
  return mapped;
}

c10::IValue map_ivalue_leaves(const c10::IValue& value, MapIValue fn) {
  if (!has_children(value)) return fn(value);
  return map_ivalue_children(
      value, [fn](const c10::IValue& child) { return map_ivalue_leaves(child, fn); });
}

}  // namespace accelerate::internal
