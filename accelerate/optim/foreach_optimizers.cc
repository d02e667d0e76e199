#include "accelerate/optim/foreach_optimizers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_sign.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate::optim {
namespace {

// Parameters with a gradient, as lists for LibTorch's foreach operators: one device, dtype and step
// number each.
template <size_t kStates>
struct ForeachBatch {
  int64_t step;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> grads;
  std::array<std::vector<at::Tensor>, kStates> states;
};

template <size_t kStates>
void add_to(std::vector<ForeachBatch<kStates>>& batches, int64_t step, const at::Tensor& parameter,
            const std::array<at::Tensor, kStates>& states) {
  const at::Tensor values = internal::as_real(parameter);
  const auto fits = [&](const ForeachBatch<kStates>& batch) {
    const at::Tensor& first = batch.parameters.front();
    return batch.step == step && first.device() == values.device() &&
           first.scalar_type() == values.scalar_type();
  };
  auto found = std::ranges::find_if(batches, fits);
  if (found == batches.end()) found = batches.insert(found, ForeachBatch<kStates>{.step = step});
  found->parameters.push_back(values);
  found->grads.push_back(internal::as_real(parameter.grad()));
  for (size_t i = 0; i < kStates; ++i) found->states[i].push_back(internal::as_real(states[i]));
}

// |parameter| / |change| for each, within its limits, as tensors on the device.
std::vector<at::Tensor> trust_ratios(at::TensorList parameters, at::TensorList changes,
                                     const LambOptions& options) {
  const at::Tensor lengths = at::stack(at::_foreach_norm(parameters, 2));
  const at::Tensor steps = at::stack(at::_foreach_norm(changes, 2));
  const at::Tensor ratios = (lengths / steps).clamp_(options.min_coeff(), options.max_coeff());
  return at::where(lengths.gt(0).logical_and_(steps.gt(0)), ratios, at::ones_like(steps)).unbind();
}

}  // namespace

void LionOptions::check() const { internal::check_rates(lr(), betas(), weight_decay()); }

at::Tensor Lion::step(LossClosure closure) {
  at::NoGradGuard no_grad;
  at::Tensor loss = internal::call_closure(closure);
  internal::check_gradients_are_dense("Lion", param_groups_);
  for (torch::optim::OptimizerParamGroup& group : param_groups_) {
    const auto& options = static_cast<const LionOptions&>(group.options());
    const auto [beta1, beta2] = options.betas();
    std::vector<ForeachBatch<1>> batches;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& state = internal::state_of<LionParamState>(*this, parameter);
      if (!state.exp_avg().defined()) state.exp_avg(at::zeros_like(parameter));
      add_to(batches, 0, parameter, {state.exp_avg()});
    }
    for (auto& batch : batches) {
      std::vector<at::Tensor> change = at::_foreach_mul(batch.states[0], beta1);
      at::_foreach_add_(change, batch.grads, 1 - beta1);
      at::_foreach_sign_(change);
      if (options.weight_decay() != 0) {
        at::_foreach_mul_(batch.parameters, 1 - options.lr() * options.weight_decay());
      }
      at::_foreach_add_(batch.parameters, change, -options.lr());
      at::_foreach_mul_(batch.states[0], beta2);
      at::_foreach_add_(batch.states[0], batch.grads, 1 - beta2);
    }
  }
  return loss;
}

// The base class makes state for the parameters that it is given.
Adagrad::Adagrad(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                 torch::optim::AdagradOptions defaults)
    : torch::optim::Adagrad(std::vector<torch::optim::OptimizerParamGroup>(), std::move(defaults)) {
  for (const torch::optim::OptimizerParamGroup& group : param_groups) add_param_group(group);
}

Adagrad::Adagrad(std::vector<at::Tensor> parameters, torch::optim::AdagradOptions defaults)
    : Adagrad({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

at::Tensor Adagrad::step(LossClosure closure) {
  at::Tensor loss = internal::call_closure(closure);
  for (const torch::optim::OptimizerParamGroup& group : param_groups_) {
    const auto& options = static_cast<const torch::optim::AdagradOptions&>(group.options());
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& state = internal::state_of<torch::optim::AdagradParamState>(*this, parameter);
      if (state.sum().defined()) continue;
      at::NoGradGuard no_grad;
      state.sum(at::full_like(parameter, options.initial_accumulator_value()));
    }
  }
  torch::optim::Adagrad::step();
  return loss;
}

void LambOptions::check() const {
  internal::check_rates(lr(), betas(), weight_decay());
  TORCH_CHECK_VALUE(eps() >= 0, "Invalid epsilon value: ", eps());
  TORCH_CHECK_VALUE(0 <= min_coeff() && min_coeff() <= max_coeff(),
                    "Invalid min_coeff and max_coeff values: ", min_coeff(), " and ", max_coeff());
}

at::Tensor Lamb::step(LossClosure closure) {
  at::NoGradGuard no_grad;
  at::Tensor loss = internal::call_closure(closure);
  internal::check_gradients_are_dense("Lamb", param_groups_);
  for (torch::optim::OptimizerParamGroup& group : param_groups_) {
    const auto& options = static_cast<const LambOptions&>(group.options());
    const auto [beta1, beta2] = options.betas();
    std::vector<ForeachBatch<2>> batches;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& state = internal::state_of<LambParamState>(*this, parameter);
      if (!state.exp_avg().defined()) {
        state.exp_avg(at::zeros_like(parameter));
        state.exp_avg_sq(at::zeros_like(parameter));
      }
      state.step(state.step() + 1);
      add_to(batches, state.step(), parameter, {state.exp_avg(), state.exp_avg_sq()});
    }
    for (auto& batch : batches) {
      auto& [exp_avgs, exp_avg_sqs] = batch.states;
      at::_foreach_mul_(exp_avgs, beta1);
      at::_foreach_add_(exp_avgs, batch.grads, 1 - beta1);
      at::_foreach_mul_(exp_avg_sqs, beta2);
      at::_foreach_addcmul_(exp_avg_sqs, batch.grads, batch.grads, 1 - beta2);
      const bool corrects = options.bias_correction();
      const double correction1 = corrects ? 1 - std::pow(beta1, batch.step) : 1;
      const double correction2 = corrects ? 1 - std::pow(beta2, batch.step) : 1;
      std::vector<at::Tensor> denominators = at::_foreach_sqrt(exp_avg_sqs);
      at::_foreach_div_(denominators, std::sqrt(correction2));
      at::_foreach_add_(denominators, options.eps());
      std::vector<at::Tensor> changes = at::_foreach_div(exp_avgs, correction1);
      at::_foreach_div_(changes, denominators);
      if (options.weight_decay() != 0) {
        at::_foreach_add_(changes, batch.parameters, options.weight_decay());
      }
      at::_foreach_mul_(changes, trust_ratios(batch.parameters, changes, options));
      at::_foreach_add_(batch.parameters, changes, -options.lr());
    }
  }
  return loss;
}

void ScheduleFreeAdamWOptions::check() const {
  internal::check_rates(lr(), betas(), weight_decay());
  TORCH_CHECK_VALUE(eps() >= 0, "Invalid epsilon value: ", eps());
  TORCH_CHECK_VALUE(warmup_steps() >= 0, "Invalid warmup_steps value: ", warmup_steps());
  TORCH_CHECK_VALUE(
      std::get<0>(betas()) > 0,
      "Invalid beta parameter at index 0: without it there is no average to evaluate");
}

at::Tensor ScheduleFreeAdamW::step(LossClosure closure) {
  for (const torch::optim::OptimizerParamGroup& group : param_groups_) {
    TORCH_CHECK(static_cast<const ScheduleFreeAdamWOptions&>(group.options()).train_mode(),
                "this optimizer is in evaluation mode: call its train() before step()");
  }
  at::NoGradGuard no_grad;
  at::Tensor loss = internal::call_closure(closure);
  internal::check_gradients_are_dense("ScheduleFreeAdamW", param_groups_);
  for (torch::optim::OptimizerParamGroup& group : param_groups_) {
    auto& options = static_cast<ScheduleFreeAdamWOptions&>(group.options());
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

    std::vector<ForeachBatch<2>> batches;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& state = internal::state_of<ScheduleFreeAdamWParamState>(*this, parameter);
      if (!state.z().defined()) {
        state.z(parameter.detach().clone());
        state.exp_avg_sq(at::zeros_like(parameter));
      }
      add_to(batches, 0, parameter, {state.z(), state.exp_avg_sq()});
    }
    for (auto& batch : batches) {
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
    auto& options = static_cast<ScheduleFreeAdamWOptions&>(group.options());
    if (options.train_mode() == train_mode) continue;
    options.train_mode(train_mode);
    // y = x + (1 - beta1) (z - x), and back.
    const double beta1 = std::get<0>(options.betas());
    const double weight = train_mode ? 1 - beta1 : 1 - 1 / beta1;
    for (const at::Tensor& parameter : group.params()) {
      const auto found = state_.find(parameter.unsafeGetTensorImpl());
      if (found == state_.end()) continue;
      parameter.lerp_(static_cast<const ScheduleFreeAdamWParamState&>(*found->second).z(), weight);
    }
  }
}

}  // namespace accelerate::optim
