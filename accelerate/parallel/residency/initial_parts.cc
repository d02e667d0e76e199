#include "accelerate/parallel/residency/initial_parts.h"

#include <utility>

#include <ATen/ops/empty.h>

#include "accelerate/comm/operations.h"
#include "accelerate/operators/construction_record.h"
#include "accelerate/operators/deferred_values.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate::internal {
namespace {

// The parameter's values on the device, contiguous.
at::Tensor values_on(c10::Device device, const at::Tensor& parameter) {
  if (parameter.device() == device) return parameter.detach().contiguous();
  at::Tensor values = at::empty(parameter.sizes(), parameter.options().device(device));
  tag_memory(values, MemoryKind::kGatheredParameter);
  return values.copy_(parameter);
}

}  // namespace

std::vector<at::Tensor> InitialParts::of(const std::vector<Wanted>& wanted) {
  std::vector<at::Tensor> values, empty, parts;
  if (wanted.empty()) return parts;
  for (const Wanted& each : wanted) {
    if (each.parameter.is_meta()) empty.push_back(each.parameter);
  }
  if (options_.initialise && !empty.empty()) {
    options_.initialise(empty);
    std::erase_if(empty, [](const at::Tensor& parameter) { return !parameter.is_meta(); });
  }
  empty = recorded(empty);
  auto next = empty.begin();
  for (const Wanted& each : wanted) {
    values.push_back(values_on(device_, each.parameter.is_meta() ? *next++ : each.parameter));
  }
  empty.clear();
  broadcast_tensors(groups_.all, values, 0);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const at::Tensor& parameter = wanted[i].parameter;
    parts.push_back(padded_to(flat_rows(values[i], rows_of_rank(parameter, groups_.shards)),
                              padded_numel(parameter, size_of(groups_.shards)), place_of(wanted[i]),
                              MemoryKind::kParameter));
  }
  return parts;
}

// The values of a construction or a checkpoint. A rank that cannot read still takes part in what
// follows.
std::vector<at::Tensor> InitialParts::recorded(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> values;
  if (tensors.empty()) return values;
  if (options_.deferred == DeferredReads::kNone) return recorded_values(tensors);
  if (reading_.ok()) {
    reading_ = outcome_of([&]() -> std::string {
      values = recorded_values(tensors);
      return "";
    });
  }
  if (reading_.ok()) return values;
  values.clear();
  for (const at::Tensor& each : tensors) {
    values.push_back(at::empty(each.sizes(), each.options().device(device_)));
  }
  return values;
}

// Read straight to where they stay.
at::Tensor InitialParts::own_rows(const Wanted& wanted) {
  const at::Tensor& parameter = wanted.parameter;
  const ShardRows rows = rows_of_rank(parameter, groups_.shards);
  const int64_t row = parameter.numel() / rows_of(parameter);
  at::Tensor part = flat(padded_numel(parameter, size_of(groups_.shards)), place_of(wanted),
                         MemoryKind::kParameter);
  const int64_t numel = row * rows.count;
  part.narrow(0, numel, part.numel() - numel).zero_();
  if (numel == 0 || !reading_.ok()) return part;
  reading_ = outcome_of([&]() -> std::string {
    deferred_values(parameter)->read(row * rows.first, part.narrow(0, 0, numel));
    return "";
  });
  return part;
}

std::vector<at::Tensor> InitialParts::of_empty(const std::vector<Wanted>& wanted) {
  std::vector<at::Tensor> parts(wanted.size());
  std::vector<Wanted> batch;
  std::vector<size_t> places;
  int64_t bytes = 0;
  const auto make = [&] {
    std::vector<at::Tensor> made = of(batch);
    for (size_t i = 0; i < made.size(); ++i) parts[places[i]] = std::move(made[i]);
    batch.clear();
    places.clear();
    bytes = 0;
  };
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (options_.deferred == DeferredReads::kOwnRows &&
        deferred_values(wanted[i].parameter) != nullptr) {
      parts[i] = own_rows(wanted[i]);
      continue;
    }
    batch.push_back(wanted[i]);
    places.push_back(i);
    bytes += static_cast<int64_t>(wanted[i].parameter.nbytes());
    if (bytes >= options_.group_bytes) make();
  }
  make();
  if (options_.deferred != DeferredReads::kNone) {
    throw_failures(exchange_outcomes(groups_.all, "prepare", reading_), "prepare", reading_);
  }
  return parts;
}

}  // namespace accelerate::internal
