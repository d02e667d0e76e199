#include "accelerate/step/metrics.h"

#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "accelerate/comm/watch/collective_call.h"

namespace accelerate::internal {

namespace {

// For each tensor: whether all ranks have as many rows of it.
std::vector<bool> have_equal_rows(const ProcessGroupPtr& group,
                                  const std::vector<at::Tensor>& tensors) {
  const auto count = static_cast<int64_t>(tensors.size());
  at::Tensor own = at::empty({1, count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor& tensor = tensors[static_cast<size_t>(i)];
    TORCH_CHECK_VALUE(tensor.defined(), "gather_for_metrics: a tensor is undefined");
    own.mutable_data_ptr<int64_t>()[i] = tensor.dim() == 0 ? 1 : tensor.size(0);
  }
  // On the CPU, so that no rank waits for its device.
  const at::Tensor all = gather_tensor(group, own);
  std::vector<bool> equal;
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor rows = all.select(1, i);
    equal.push_back(rows.eq(rows[0]).all().item<bool>());
  }
  return equal;
}

// This rank's real rows of a batch.
at::Tensor without_padding(const BatchRound& round, const at::Tensor& tensor) {
  const bool is_padded =
      round.own_rows != BatchRound::kAll && tensor.dim() > 0 && tensor.size(0) > round.own_rows;
  return is_padded ? tensor.narrow(0, 0, round.own_rows) : tensor;
}

}  // namespace

std::vector<at::Tensor> gather_real_rows(const ProcessGroupPtr& group, const BatchRound& round,
                                         std::vector<at::Tensor> tensors) {
  if (tensors.empty()) return tensors;
  const std::vector<bool> equal =
      round.ragged ? std::vector<bool>(tensors.size()) : have_equal_rows(group, tensors);
  std::vector<at::Tensor> others;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!equal[i]) others.push_back(without_padding(round, tensors[i]));
  }
  others = gather_ragged_tensors(group, others);
  auto next = others.begin();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!equal[i]) {
      tensors[i] = std::move(*next++);
      continue;
    }
    // Padding comes last in the concatenation of the ranks' rows.
    const MetricValues metrics;
    tensors[i] = gather_tensor(group, tensors[i]);
    if (round.real_rows != BatchRound::kAll && tensors[i].size(0) > round.real_rows) {
      tensors[i] = tensors[i].narrow(0, 0, round.real_rows);
    }
  }
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
