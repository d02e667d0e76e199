#include "accelerate/optim/lion.h"

#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sign.h>
#include <ATen/ops/zeros_like.h>

#include "accelerate/optim/foreach_batches.h"
#include "accelerate/optim/fused_batches.h"

namespace accelerate::optim {

Lion::Lion(const std::vector<torch::optim::OptimizerParamGroup>& param_groups, LionOptions defaults)
    : Optimizer(param_groups, std::make_unique<LionOptions>(defaults)) {
  internal::check_rates(defaults.lr(), defaults.betas(), defaults.weight_decay());
}

Lion::Lion(std::vector<at::Tensor> parameters, LionOptions defaults)
    : Lion({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

at::Tensor Lion::step(LossClosure closure) {
  at::NoGradGuard no_grad;
  at::Tensor loss = internal::call_closure(closure);
  internal::check_gradients_are_dense("Lion", param_groups_);
  for (torch::optim::OptimizerParamGroup& group : param_groups_) {
    const auto& options = static_cast<const LionOptions&>(group.options());
    const auto [beta1, beta2] = options.betas();
    internal::ForeachBatches<1> batches;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& state = internal::state_of<LionParamState>(*this, parameter);
      if (!state.exp_avg().defined()) state.exp_avg(at::zeros_like(parameter));
      batches.add(0, parameter, {state.exp_avg()});
    }
    for (auto& batch : batches.batches()) {
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

void Lion::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<LionParamState, LionOptions>(archive, *this);
}

void Lion::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<LionParamState, LionOptions>(archive, *this);
}

}  // namespace accelerate::optim
