#include "accelerate/util/tree.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

namespace accelerate::internal {
namespace {

c10::IValue rebuild_tuple(const c10::ivalue::Tuple& tuple,
                          absl::FunctionRef<void(at::Tensor&)> fn) {
  std::vector<c10::IValue> elements(tuple.elements().begin(), tuple.elements().end());
  for (c10::IValue& element : elements) visit_ivalue(element, fn);
  std::shared_ptr<c10::TupleType> type = tuple.type();
  if (type->schema() != nullptr) {
    return c10::ivalue::Tuple::createNamed(std::move(elements), std::move(type));
  }
  return c10::ivalue::Tuple::create(std::move(elements));
}

c10::IValue rebuild_list(const c10::impl::GenericList& list,
                         absl::FunctionRef<void(at::Tensor&)> fn) {
  c10::impl::GenericList rebuilt(list.elementType());
  rebuilt.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    c10::IValue element = list.get(i);
    visit_ivalue(element, fn);
    rebuilt.push_back(std::move(element));
  }
  return rebuilt;
}

c10::IValue rebuild_dict(const c10::impl::GenericDict& dict,
                         absl::FunctionRef<void(at::Tensor&)> fn) {
  c10::impl::GenericDict rebuilt(dict.keyType(), dict.valueType());
  rebuilt.reserve(dict.size());
  for (const auto& entry : dict) {
    c10::IValue element = entry.value();
    visit_ivalue(element, fn);
    rebuilt.insert(entry.key(), std::move(element));
  }
  return rebuilt;
}

// Lists of numbers and booleans cannot hold a tensor.
bool is_descended_list(const c10::IValue& value) {
  return value.isTensorList() || (value.isList() && !value.isIntList() && !value.isDoubleList() &&
                                  !value.isBoolList() && !value.isComplexDoubleList());
}

}  // namespace

void visit_ivalue(c10::IValue& value, absl::FunctionRef<void(at::Tensor&)> fn) {
  if (value.isTensor()) {
    at::Tensor tensor = std::move(value).toTensor();
    fn(tensor);
    value = std::move(tensor);
  } else if (value.isTuple()) {
    value = rebuild_tuple(value.toTupleRef(), fn);
  } else if (value.isGenericDict()) {
    value = rebuild_dict(value.toGenericDict(), fn);
  } else if (is_descended_list(value)) {
    value = rebuild_list(value.toList(), fn);
  }
}

void visit_ivalue(const c10::IValue& value, absl::FunctionRef<void(const at::Tensor&)> fn) {
  if (value.isTensor()) {
    fn(value.toTensor());
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) visit_ivalue(element, fn);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) visit_ivalue(entry.value(), fn);
  } else if (is_descended_list(value)) {
    for (const c10::IValue& element : value.toListRef()) visit_ivalue(element, fn);
  }
}

}  // namespace accelerate::internal
