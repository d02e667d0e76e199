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

using Part = absl::Span<const Update>;

// Parts of at least `elements` elements each; 0: all are one part.
std::vector<Part> parts_of(Part updates, int64_t elements, AroundParts* around) {
  const int64_t max_bytes = around == nullptr ? 0 : around->max_bytes();
  std::vector<Part> parts;
  size_t begin = 0;
  int64_t taken = 0, bytes = 0;
  for (size_t i = 0; i < updates.size(); ++i) {
    const int64_t next = max_bytes == 0 ? 0 : around->bytes_of(updates[i].parameter);
    const bool is_full = (elements > 0 && taken >= elements) ||
                         (max_bytes > 0 && taken > 0 && bytes + next > max_bytes);
    if (is_full) {
      parts.push_back(updates.subspan(begin, i - begin));
      begin = i;
      taken = bytes = 0;
    }
    taken += updates[i].parameter.numel();
    bytes += next;
  }
  if (!updates.empty()) parts.push_back(updates.subspan(begin));
  return parts;
}

std::vector<std::vector<at::Tensor>> parameters_of(const std::vector<Part>& parts) {
  std::vector<std::vector<at::Tensor>> parameters;
  for (const Part part : parts) {
    std::vector<at::Tensor>& of_part = parameters.emplace_back();
    for (const Update& each : part) of_part.push_back(each.parameter);
  }
  return parameters;
}

// Announces the optimizer's update of those parameters that are on the host, which reads each
// tensor and writes it, but for gradients.
void announce_host_work(const torch::optim::Optimizer& optimizer, Part updates) {
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

void step(torch::optim::Optimizer& optimizer, size_t part, AroundParts* around, Part updates) {
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
  std::vector<Update> updates;  // where parameters have gradients
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) updates.push_back({parameter, parameter.grad()});
    }
  }
  const bool can = can_step_in_parts(optimizer);
  const std::vector<Part> parts = parts_of(updates, can ? elements : 0, can ? around : nullptr);
  if (around == nullptr && parts.size() <= 1 && std::ranges::none_of(updates, &Update::casts)) {
    optimizer.step();
    announce_host_work(optimizer, updates);
    return;
  }
  if (around != nullptr) around->begin(parameters_of(parts));
  const absl::Cleanup restore = [&updates] {
    for (const Update& each : updates) each.parameter.mutable_grad() = each.gradient;
  };
  for (const Update& each : updates) each.parameter.mutable_grad().reset();
  for (size_t i = 0; i < parts.size(); ++i) {
    if (around != nullptr) around->before(i);
    step(optimizer, i, around, parts[i]);
    for (const Update& each : parts[i]) each.parameter.mutable_grad().reset();
  }
}

}  // namespace accelerate
