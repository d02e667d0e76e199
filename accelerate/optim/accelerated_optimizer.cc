#include "accelerate/optim/accelerated_optimizer.h"

#include <utility>

#include <ATen/core/grad_mode.h>

namespace accelerate {

AcceleratedOptimizer::AcceleratedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                           GradientState& gradient_state,
                                           std::shared_ptr<SharedScaler> scaler)
    : optimizer_(std::make_shared<Shared>(Shared{.optimizer = std::move(optimizer),
                                                 .scaler = SharedScaler::User(std::move(scaler))})),
      gradient_state_(&gradient_state) {}

at::Tensor AcceleratedOptimizer::step(torch::optim::Optimizer::LossClosure closure) {
  if (!gradient_state_->sync_gradients()) return {};
  torch::optim::Optimizer& inner = *optimizer();
  at::Tensor loss;
  if (optimizer_->scaler) {
    TORCH_CHECK_VALUE(!closure, "step: a closure would be evaluated without the scale of fp16");
    optimizer_->step_was_skipped = !optimizer_->scaler.step(inner);
  } else {
    loss = inner.step(std::move(closure));
  }
  gradient_state_->set_is_xla_gradients_synced(false);
  return loss;
}

void AcceleratedOptimizer::zero_grad(bool set_to_none) {
  if (!gradient_state_->sync_gradients()) return;
  for (torch::optim::OptimizerParamGroup& group : optimizer()->param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      at::Tensor& grad = parameter.mutable_grad();
      if (!grad.defined()) continue;
      // Not detach_(), as LibTorch's own does: a gradient may be a view into a DDP bucket.
      if (set_to_none) {
        grad.reset();
      } else {
        at::NoGradGuard no_grad;
        grad.zero_();
      }
    }
  }
}

}  // namespace accelerate
