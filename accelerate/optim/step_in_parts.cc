#include "accelerate/optim/step_in_parts.h"

#include <algorithm>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/types/span.h"
#include "accelerate/optim/foreach_optimizers.h"
#include "accelerate/optim/optimizer_state_dict.h"
#include "accelerate/runtime/shared_objects.h"

namespace accelerate {
namespace {

template <typename... Optimizers>
bool is_one_of(const torch::optim::Optimizer& optimizer) {
  return ((dynamic_cast<const Optimizers*>(&optimizer) != nullptr) || ...);
}

struct Update {
  at::Tensor parameter, gradient;

  bool casts() const { return gradient.scalar_type() != parameter.scalar_type(); }
};

// The parameters that have gradients.
std::vector<Update> updates_of(torch::optim::Optimizer& optimizer) {
  std::vector<Update> updates;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) updates.push_back({parameter, parameter.grad()});
    }
  }
  return updates;
}

// Where parts end, of at least `elements` elements each; 0: all are one part.
std::vector<size_t> ends_of_parts(const std::vector<Update>& updates, int64_t elements,
                                  AroundParts* around) {
  const int64_t max_bytes = around == nullptr ? 0 : around->max_bytes();
  std::vector<size_t> ends;
  int64_t taken = 0, bytes = 0;
  for (size_t i = 0; i < updates.size(); ++i) {
    const int64_t next = max_bytes == 0 ? 0 : around->bytes_of(updates[i].parameter);
    const bool is_full = (elements > 0 && taken >= elements) ||
                         (max_bytes > 0 && taken > 0 && bytes + next > max_bytes);
    if (is_full) {
      ends.push_back(i);
      taken = bytes = 0;
    }
    taken += updates[i].parameter.numel();
    bytes += next;
  }
  if (!updates.empty()) ends.push_back(updates.size());
  return ends;
}

std::vector<std::vector<at::Tensor>> parameters_of_parts(const std::vector<Update>& updates,
                                                         const std::vector<size_t>& ends) {
  std::vector<std::vector<at::Tensor>> parts;
  size_t i = 0;
  for (const size_t end : ends) {
    std::vector<at::Tensor>& part = parts.emplace_back();
    for (; i < end; ++i) part.push_back(updates[i].parameter);
  }
  return parts;
}

// Announces the optimizer's update of those parameters that are on the host, which reads each
// tensor and writes it, but for gradients.
void announce_host_work(const torch::optim::Optimizer& optimizer,
                        absl::Span<const Update> updates) {
  HostWork* const work = HostWork::find();
  if (work == nullptr) return;
  double bytes = 0;
  const auto add = [&bytes](const at::Tensor& tensor, int passes) {
    bytes += passes * static_cast<double>(tensor.nbytes());
  };
  for (const Update& each : updates) {
    if (!each.parameter.is_cpu()) continue;
    add(each.parameter, /*passes=*/2);
    add(each.gradient, /*passes=*/1);
    if (each.casts()) add(each.parameter, /*passes=*/2);  // the cast gradient
    visit_state_tensors(optimizer, each.parameter, [&](const char*, const at::Tensor& tensor) {
      if (tensor.is_cpu()) add(tensor, /*passes=*/2);
    });
  }
  if (bytes > 0) work->updated_parameters(bytes);
}

void step(torch::optim::Optimizer& optimizer, size_t part, AroundParts* around,
          absl::Span<const Update> updates) {
  try {
    for (const Update& each : updates) {
      each.parameter.mutable_grad() = each.gradient.to(each.parameter.scalar_type());
    }
    optimizer.step();
    announce_host_work(optimizer, updates);
  } catch (...) {
    if (around != nullptr) around->after(part, /*failed=*/true);
    throw;
  }
  if (around != nullptr) around->after(part, /*failed=*/false);
}

}  // namespace

bool can_step_in_parts(const torch::optim::Optimizer& optimizer) {
  return is_one_of<torch::optim::SGD, torch::optim::Adam, torch::optim::AdamW,
                   torch::optim::Adagrad, torch::optim::RMSprop, optim::Lion, optim::Lamb>(
      optimizer);
}

void step_in_parts(torch::optim::Optimizer& optimizer, int64_t elements, AroundParts* around) {
  const std::vector<Update> updates = updates_of(optimizer);
  const std::vector<size_t> ends =
      ends_of_parts(updates, can_step_in_parts(optimizer) ? elements : 0,
                    can_step_in_parts(optimizer) ? around : nullptr);
  if (around == nullptr && ends.size() <= 1 && std::ranges::none_of(updates, &Update::casts)) {
    optimizer.step();
    announce_host_work(optimizer, updates);
    return;
  }
  if (around != nullptr) around->begin(parameters_of_parts(updates, ends));
  const absl::Cleanup restore = [&updates] {
    for (const Update& each : updates) each.parameter.mutable_grad() = each.gradient;
  };
  for (const Update& each : updates) each.parameter.mutable_grad().reset();
  size_t begin = 0;
  for (size_t part = 0; part < ends.size(); begin = ends[part++]) {
    if (around != nullptr) around->before(part);
    const auto of_part = absl::MakeConstSpan(updates).subspan(begin, ends[part] - begin);
    step(optimizer, part, around, of_part);
    for (const Update& each : of_part) each.parameter.mutable_grad().reset();
  }
}

}  // namespace accelerate
