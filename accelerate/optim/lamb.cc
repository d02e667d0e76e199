#include "accelerate/optim/lamb.h"

#include <cmath>
#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "accelerate/optim/foreach_batches.h"
#include "accelerate/optim/fused_batches.h"

namespace accelerate::optim {
namespace {

// |parameter| / |change| for each, as tensors on the device.
std::vector<at::Tensor> trust_ratios(at::TensorList parameters, at::TensorList changes) {
  const at::Tensor lengths = at::stack(at::_foreach_norm(parameters, 2));
  const at::Tensor steps = at::stack(at::_foreach_norm(changes, 2));
  return at::where(lengths.gt(0).logical_and_(steps.gt(0)), lengths / steps, at::ones_like(steps))
      .unbind();
}

}  // namespace

Lamb::Lamb(const std::vector<torch::optim::OptimizerParamGroup>& param_groups, LambOptions defaults)
    : Optimizer(param_groups, std::make_unique<LambOptions>(defaults)) {
  internal::check_rates(defaults.lr(), defaults.betas(), defaults.weight_decay());
  TORCH_CHECK_VALUE(defaults.eps() >= 0, "Invalid epsilon value: ", defaults.eps());
}

Lamb::Lamb(std::vector<at::Tensor> parameters, LambOptions defaults)
    : Lamb({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

at::Tensor Lamb::step(LossClosure closure) {
  at::NoGradGuard no_grad;
  at::Tensor loss = internal::call_closure(closure);
  internal::check_gradients_are_dense("Lamb", param_groups_);
  for (torch::optim::OptimizerParamGroup& group : param_groups_) {
    const auto& options = static_cast<const LambOptions&>(group.options());
    const auto [beta1, beta2] = options.betas();
    internal::ForeachBatches<2> batches;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& state = internal::state_of<LambParamState>(*this, parameter);
      if (!state.exp_avg().defined()) {
        state.exp_avg(at::zeros_like(parameter));
        state.exp_avg_sq(at::zeros_like(parameter));
      }
      state.step(state.step() + 1);
      batches.add(state.step(), parameter, {state.exp_avg(), state.exp_avg_sq()});
    }
    for (auto& batch : batches.batches()) {
      auto& [exp_avgs, exp_avg_sqs] = batch.states;
      at::_foreach_mul_(exp_avgs, beta1);
      at::_foreach_add_(exp_avgs, batch.grads, 1 - beta1);
      at::_foreach_mul_(exp_avg_sqs, beta2);
      at::_foreach_addcmul_(exp_avg_sqs, batch.grads, batch.grads, 1 - beta2);
      const double correction1 = 1 - std::pow(beta1, batch.step);
      const double correction2 = 1 - std::pow(beta2, batch.step);
      std::vector<at::Tensor> denominators = at::_foreach_sqrt(exp_avg_sqs);
      at::_foreach_div_(denominators, std::sqrt(correction2));
      at::_foreach_add_(denominators, options.eps());
      std::vector<at::Tensor> changes = at::_foreach_div(exp_avgs, correction1);
      at::_foreach_div_(changes, denominators);
      if (options.weight_decay() != 0) {
        at::_foreach_add_(changes, batch.parameters, options.weight_decay());
      }
      at::_foreach_mul_(changes, trust_ratios(batch.parameters, changes));
      at::_foreach_add_(batch.parameters, changes, -options.lr());
    }
  }
  return loss;
}

void Lamb::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<LambParamState, LambOptions>(archive, *this);
}

void Lamb::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<LambParamState, LambOptions>(archive, *this);
}

}  // namespace accelerate::optim
