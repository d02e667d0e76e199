/// The arguments of a call that a handler (operator_mode.h) sees, and the tensors among them.
///
/// Threads: values.
#pragma once

#include <type_traits>
#include <utility>

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

#include "accelerate/operators/operator_mode.h"

namespace accelerate {

/// Those of a call that has not proceeded.
inline c10::ArrayRef<c10::IValue> arguments_of(const OperatorCall& call) {
  return torch::jit::last(call.stack(), call.op().schema().arguments().size());
}

/// Calls visit(tensor), or visit(tensor, its place in the list or -1), for the tensors in a value
/// that are defined. Lists have one type of elements, or, of tensors, none in the place of some.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  const auto visit_one = [&visit](const c10::IValue& one, [[maybe_unused]] int place) {
    if (!one.isTensor() || !one.toTensor().defined()) return;
    if constexpr (std::is_invocable_v<Visit&, const at::Tensor&, int>) {
      visit(one.toTensor(), place);
    } else {
      visit(one.toTensor());
    }
  };
  if (!value.isList()) return visit_one(value, -1);
  int place = 0;
  for (const c10::IValue& each : value.toListRef()) {
    if (!each.isTensor() && !each.isNone()) return;
    visit_one(each, place++);
  }
}

/// The same for each of several values, as arguments_of(call).
template <typename Visit>
void for_each_tensor(c10::ArrayRef<c10::IValue> values, Visit&& visit) {
  for (const c10::IValue& value : values) for_each_tensor(value, visit);
}

/// Replaces tensors in their places, as for_each_tensor numbers them; at least one. Lists are
/// shared by values, so a copy takes the list's place.
inline void put_tensors(c10::IValue& value, c10::ArrayRef<std::pair<int, at::Tensor>> tensors) {
  const auto put_in = [&](auto list) {
    for (const auto& [place, tensor] : tensors) list.set(place, tensor);
    value = std::move(list);
  };
  if (tensors.front().first < 0) {
    value = tensors.front().second;
  } else if (value.isTensorList()) {
    put_in(value.toTensorList().copy());
  } else {
    put_in(value.toOptionalTensorList().copy());
  }
}
inline void put_tensor(c10::IValue& value, int place, const at::Tensor& tensor) {
  const std::pair<int, at::Tensor> one(place, tensor);
  put_tensors(value, one);
}

}  // namespace accelerate
