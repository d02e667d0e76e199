#include "accelerate/step/metrics.h"

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>

namespace accelerate::internal {

at::Tensor gather_real_rows(const ProcessGroupPtr& group, const BatchRound& round,
                            const at::Tensor& tensor) {
  if (!round.ragged) {
    // Padding comes last in the concatenation of the ranks' rows.
    const at::Tensor gathered = gather_tensor(group, tensor);
    if (round.real_rows == BatchRound::kAll || gathered.size(0) <= round.real_rows) return gathered;
    return gathered.narrow(0, 0, round.real_rows);
  }
  const bool is_padded =
      round.own_rows != BatchRound::kAll && tensor.dim() > 0 && tensor.size(0) > round.own_rows;
  return gather_ragged_tensor(group, is_padded ? tensor.narrow(0, 0, round.own_rows) : tensor);
}

void throw_no_list_for_metrics() {
  TORCH_CHECK_VALUE(false,
                    "gather_for_metrics: use_gather_object takes a std::vector or a "
                    "c10::IValue with an entry per sample");
}

namespace {

bool is_list(const c10::IValue& value) {
  return value.isList() || value.isTuple() || value.isString();
}

// Whether all leaves are tensors. An empty list counts as one of tensors only by its static type.
bool holds_tensors_only(const c10::IValue& value) {
  if (value.isTensorList() || value.isNone()) return true;
  bool only = true;
  bool any = false;
  visit_ivalue_leaves(value, [&](const c10::IValue& leaf) {
    any = true;
    only = only && (leaf.isTensor() || leaf.isNone());
  });
  return any ? only : !is_list(value);
}

}  // namespace

c10::IValue gather_dynamic_for_metrics(const ProcessGroupPtr& group, const BatchRound& round,
                                       const c10::IValue& value, bool use_gather_object) {
  if (!use_gather_object && holds_tensors_only(value)) {
    return tree_map(
        value, [&](const at::Tensor& tensor) { return gather_real_rows(group, round, tensor); });
  }
  if (!use_gather_object && value.isGenericDict()) {
    return map_ivalue_children(value, [&](const c10::IValue& member) {
      return gather_dynamic_for_metrics(group, round, member, false);
    });
  }
  c10::impl::GenericList all(c10::AnyType::get());
  for (c10::IValue& entry : gather_real_entries(group, round, entries_of(value))) {
    all.push_back(std::move(entry));
  }
  return all;
}

}  // namespace accelerate::internal
