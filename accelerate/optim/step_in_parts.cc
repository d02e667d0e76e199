#include "accelerate/optim/step_in_parts.h"

#include <algorithm>
#include <utility>
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
#include "accelerate/optim/foreach_optimizers.h"

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

}  // namespace

bool can_step_in_parts(const torch::optim::Optimizer& optimizer) {
  return is_one_of<torch::optim::SGD, torch::optim::Adam, torch::optim::AdamW,
                   torch::optim::Adagrad, torch::optim::RMSprop, optim::Lion, optim::Lamb>(
      optimizer);
}

void step_in_parts(torch::optim::Optimizer& optimizer, int64_t elements) {
  const std::vector<Update> updates = updates_of(optimizer);
  if (!can_step_in_parts(optimizer)) elements = 0;
  int64_t total = 0;
  for (const Update& each : updates) total += each.parameter.numel();
  const bool is_one_part = elements == 0 || total <= elements;
  if (is_one_part && std::ranges::none_of(updates, &Update::casts)) {
    optimizer.step();
    return;
  }
  const absl::Cleanup restore = [&updates] {
    for (const Update& each : updates) each.parameter.mutable_grad() = each.gradient;
  };
  for (const Update& each : updates) each.parameter.mutable_grad().reset();
  for (size_t begin = 0, end = 0; begin < updates.size(); begin = end) {
    int64_t taken = 0;
    while (end < updates.size() && (is_one_part || taken < elements)) {
      const Update& each = updates[end++];
      taken += each.parameter.numel();
      each.parameter.mutable_grad() = each.gradient.to(each.parameter.scalar_type());
    }
    optimizer.step();
    for (size_t i = begin; i < end; ++i) updates[i].parameter.mutable_grad().reset();
  }
}

}  // namespace accelerate
