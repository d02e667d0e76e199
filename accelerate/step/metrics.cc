#include "accelerate/step/metrics.h"

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

namespace accelerate::internal {

namespace {

// Whether all ranks have equally many rows of each tensor. Collective.
bool have_equal_rows(const ProcessGroupPtr& group, const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> own;
  for (const at::Tensor& tensor : tensors) {
    own.push_back(!tensor.defined() ? -1 : tensor.dim() == 0 ? 1 : tensor.size(0));
  }
  const at::Tensor rows = at::tensor(own, at::kLong).unsqueeze(0);
  return gather_tensor(group, rows).eq(rows).all().item<bool>();
}

// The first rows. A number per batch counts as a row on each rank.
void keep_first(std::vector<at::Tensor>& tensors, int64_t rows) {
  if (rows == BatchRound::kAll) return;
  for (at::Tensor& tensor : tensors) {
    if (tensor.size(0) > rows) tensor = tensor.narrow(0, 0, rows);
  }
}

}  // namespace

std::vector<at::Tensor> gather_real_rows(const ProcessGroupPtr& group, const BatchRound& round,
                                         std::vector<at::Tensor> tensors) {
  const bool may_be_equal = group && !tensors.empty() && !round.ragged;
  if (may_be_equal && round.own_rows != BatchRound::kAll && have_equal_rows(group, tensors)) {
    // Padding comes last in the concatenation of the ranks' rows, and no rank says how many of its
    // rows are padding: a folded simulation takes ranks that do the same for one.
    for (at::Tensor& tensor : tensors) tensor = gather_tensor(group, tensor);
    keep_first(tensors, round.real_rows);
    return tensors;
  }
  for (at::Tensor& tensor : tensors) {
    const bool is_padded = round.own_rows != BatchRound::kAll && tensor.defined() &&
                           tensor.dim() > 0 && tensor.size(0) > round.own_rows;
    if (is_padded) tensor = tensor.narrow(0, 0, round.own_rows);
  }
  tensors = gather_ragged_tensors(group, tensors);
  if (!round.ragged) keep_first(tensors, round.real_rows);
  return tensors;
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

// As gather_dynamic_for_metrics, of a part.
c10::IValue gather_part(const ProcessGroupPtr& group, const BatchRound& round,
                        const c10::IValue& value, bool use_gather_object) {
  if (!use_gather_object && holds_tensors_only(value)) {
    c10::IValue gathered = value;
    gather_parts(group, round, gathered);
    return gathered;
  }
  if (!use_gather_object && value.isGenericDict()) {
    return map_ivalue_children(
        value, [&](const c10::IValue& member) { return gather_part(group, round, member, false); },
        DictOrder::kKeys);
  }
  c10::impl::GenericList all(c10::AnyType::get());
  for (c10::IValue& entry : gather_real_entries(group, round, entries_of(value))) {
    all.push_back(std::move(entry));
  }
  return all;
}

}  // namespace

c10::IValue gather_dynamic_for_metrics(const ProcessGroupPtr& group, const BatchRound& round,
                                       const c10::IValue& value, bool use_gather_object) {
  TreeShape shape;
  // Ranks may have different numbers of entries in a list with one per sample.
  const auto is_leaf = [](const c10::IValue& part) {
    return is_list(part) && !holds_tensors_only(part);
  };
  if (!use_gather_object) describe_ivalue(value, shape, is_leaf);
  c10::IValue gathered;
  run_on_tree(group, "gather_for_metrics", std::move(shape),
              [&] { gathered = gather_part(group, round, value, use_gather_object); });
  return gathered;
}

}  // namespace accelerate::internal
