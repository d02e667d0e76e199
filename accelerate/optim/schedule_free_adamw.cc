#include "accelerate/optim/schedule_free_adamw.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/zeros_like.h>

#include "accelerate/optim/foreach_batches.h"
#include "accelerate/optim/fused_batches.h"

namespace accelerate::optim {
namespace {

using Options = ScheduleFreeAdamWOptions;
using ParamState = ScheduleFreeAdamWParamState;

}  // namespace

ScheduleFreeAdamW::ScheduleFreeAdamW(
    const std::vector<torch::optim::OptimizerParamGroup>& param_groups, Options defaults)
    : Optimizer(param_groups, std::make_unique<Options>(defaults)) {
  internal::check_rates(defaults.lr(), defaults.betas(), defaults.weight_decay());
  TORCH_CHECK_VALUE(defaults.eps() >= 0, "Invalid epsilon value: ", defaults.eps());
  TORCH_CHECK_VALUE(defaults.warmup_steps() >= 0,
                    "Invalid warmup_steps value: ", defaults.warmup_steps());
  TORCH_CHECK_VALUE(
      std::get<0>(defaults.betas()) > 0,
      "Invalid beta parameter at index 0: without it there is no average to evaluate");
}

ScheduleFreeAdamW::ScheduleFreeAdamW(std::vector<at::Tensor> parameters, Options defaults)
    : ScheduleFreeAdamW({torch::optim::OptimizerParamGroup(std::move(parameters))},
                        std::move(defaults)) {}

at::Tensor ScheduleFreeAdamW::step(LossClosure closure) {
  for (const torch::optim::OptimizerParamGroup& group : param_groups_) {
    TORCH_CHECK(static_cast<const Options&>(group.options()).train_mode(),
                "this optimizer is in evaluation mode: call its train() before step()");
  }
  at::NoGradGuard no_grad;
  at::Tensor loss = internal::call_closure(closure);
  internal::check_gradients_are_dense("ScheduleFreeAdamW", param_groups_);
  for (torch::optim::OptimizerParamGroup& group : param_groups_) {
    auto& options = static_cast<Options&>(group.options());
    const auto [beta1, beta2] = options.betas();
    const auto k = static_cast<double>(options.k() + 1);
    options.k(options.k() + 1);
    const double warmup = std::max<double>(static_cast<double>(options.warmup_steps()), 1);
    const double lr = options.lr() * std::min(1.0, k / warmup);
    options.lr_max(std::max(lr, options.lr_max()));
    const double weight =
        std::pow(k, options.r()) * std::pow(options.lr_max(), options.weight_lr_power());
    options.weight_sum(options.weight_sum() + weight);
    const double c = options.weight_sum() > 0 ? weight / options.weight_sum() : 0;
    const double correction = 1 - std::pow(beta2, k);

    internal::ForeachBatches<2> batches;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& state = internal::state_of<ParamState>(*this, parameter);
      if (!state.z().defined()) {
        state.z(parameter.detach().clone());
        state.exp_avg_sq(at::zeros_like(parameter));
      }
      batches.add(0, parameter, {state.z(), state.exp_avg_sq()});
    }
    for (auto& batch : batches.batches()) {
      auto& [z, exp_avg_sqs] = batch.states;
      at::_foreach_mul_(exp_avg_sqs, beta2);
      at::_foreach_addcmul_(exp_avg_sqs, batch.grads, batch.grads, 1 - beta2);
      std::vector<at::Tensor> denominators = at::_foreach_div(exp_avg_sqs, correction);
      at::_foreach_sqrt_(denominators);
      at::_foreach_add_(denominators, options.eps());
      std::vector<at::Tensor> changes = at::_foreach_div(batch.grads, denominators);
      if (options.weight_decay() != 0) {
        at::_foreach_add_(changes, batch.parameters, options.weight_decay());
      }
      // y of the next step, from y and z of this one; x is not needed for it.
      at::_foreach_lerp_(batch.parameters, z, c);
      at::_foreach_add_(batch.parameters, changes, lr * (beta1 * (1 - c) - 1));
      at::_foreach_add_(z, changes, -lr);
    }
  }
  return loss;
}

void ScheduleFreeAdamW::train() { set_train_mode(true); }

void ScheduleFreeAdamW::eval() { set_train_mode(false); }

void ScheduleFreeAdamW::set_train_mode(bool train_mode) {
  at::NoGradGuard no_grad;
  for (torch::optim::OptimizerParamGroup& group : param_groups_) {
    auto& options = static_cast<Options&>(group.options());
    if (options.train_mode() == train_mode) continue;
    options.train_mode(train_mode);
    // y = x + (1 - beta1) (z - x), and back.
    const double beta1 = std::get<0>(options.betas());
    const double weight = train_mode ? 1 - beta1 : 1 - 1 / beta1;
    for (const at::Tensor& parameter : group.params()) {
      const auto found = state_.find(parameter.unsafeGetTensorImpl());
      if (found == state_.end()) continue;
      parameter.lerp_(static_cast<const ParamState&>(*found->second).z(), weight);
    }
  }
}

void ScheduleFreeAdamW::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<ParamState, Options>(archive, *this);
}

void ScheduleFreeAdamW::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<ParamState, Options>(archive, *this);
}

}  // namespace accelerate::optim
