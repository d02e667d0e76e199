/// The arguments of a call that a handler (operator_mode.h) sees, and the tensors among them.
///
/// Threads: values.
#pragma once

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

/// Calls visit(tensor) for the tensors in a value that are defined. Lists have one type of
/// elements, or, of tensors, none in the place of some.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) {
      if (!each.isTensor() && !each.isNone()) return;
      if (each.isTensor() && each.toTensor().defined()) visit(each.toTensor());
    }
  }
}

}  // namespace accelerate
