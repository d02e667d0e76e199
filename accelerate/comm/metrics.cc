#include "accelerate/comm/metrics.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

namespace accelerate::internal {

at::Tensor gather_real_rows(const ProcessGroupPtr& group, const BatchRound& round,
                            const at::Tensor& tensor) {
  if (!round.ragged) {
    // Real rows come first over all ranks.
    const at::Tensor gathered = gather_tensor(group, tensor);
    if (round.real_rows == BatchRound::kAll || gathered.size(0) <= round.real_rows) return gathered;
    return gathered.narrow(0, 0, round.real_rows);
  }
  const bool fills_up =
      round.own_rows != BatchRound::kAll && tensor.dim() > 0 && tensor.size(0) > round.own_rows;
  return gather_ragged_tensor(group, fills_up ? tensor.narrow(0, 0, round.own_rows) : tensor);
}

void check_only_tensors(const c10::IValue& value) {
  if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) check_only_tensors(element);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) check_only_tensors(entry.value());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) check_only_tensors(element);
  } else {
    TORCH_CHECK_VALUE(value.isTensor() || value.isNone(),
                      "gather_for_metrics: a c10::IValue may "
                      "hold tensors only, this one holds a ",
                      value.tagKind(), "; gather it as a std::vector");
  }
}

}  // namespace accelerate::internal
