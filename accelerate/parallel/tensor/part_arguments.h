/// The tensors among the arguments of an operator, and what their marks say of its result.
///
/// Threads: values.
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "accelerate/operators/operator_mode.h"
#include "accelerate/parallel/tensor/tensor_mark.h"

namespace accelerate {

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

/// Those of a call that has not proceeded.
inline c10::ArrayRef<c10::IValue> arguments_of(const OperatorCall& call) {
  return torch::jit::last(call.stack(), call.op().schema().arguments().size());
}

/// Whose part the result is: that of `part`, one of the arguments' marks, unless neighbours have it
/// alike and not another argument. Keys that neighbours share make scores of their own with each of
/// their queries.
std::shared_ptr<const LayerParameter> maker_of(const OperatorCall& call, const TensorMark& part);

/// The pieces (TensorMark::pieces) of parts that an operator puts together along their dim, one of
/// which is `tensor` with the mark `part`.
int64_t joined_pieces(const OperatorCall& call, const at::Tensor& tensor, const TensorMark& part);

}  // namespace accelerate
