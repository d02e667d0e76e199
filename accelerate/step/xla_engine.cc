#include "accelerate/step/xla_engine.h"

#include "accelerate/optim/lomo.h"
#include "accelerate/step/training_state.h"

namespace accelerate::internal {

void XlaEngine::prepare(const std::shared_ptr<SharedOptimizer>& optimizer,
                        const ProcessGroupPtr& ranks) {
  inside_->prepare(optimizer, ranks);
  const bool reduces =
      dynamic_cast<const optim::FusedBackwardOptimizer*>(optimizer->optimizer.get()) != nullptr;
  if (ranks != nullptr && !reduces) optimizer->averages = StepAverages{.group = ranks};
}

void XlaEngine::backward(const at::Tensor& loss, const BackwardOptions& options) {
  for_each_alive(job_.training.optimizers, [](const auto& optimizer) {
    if (optimizer->averages) optimizer->averages->are_made = false;
  });
  job_.gradients.set_is_xla_gradients_synced(false);
  inside_->backward(loss, options);
}

void XlaEngine::finalise_gradients() {
  inside_->finalise_gradients();
  job_.gradients.set_is_xla_gradients_synced(true);
}

at::Tensor XlaEngine::clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                                     const ClipGradNormOptions& options) {
  finalise_gradients();
  return inside_->clip_grad_norm(parameters, max_norm, options);
}

void XlaEngine::clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value) {
  finalise_gradients();
  inside_->clip_grad_value(parameters, clip_value);
}

StepState XlaEngine::state(const SharedOptimizer& optimizer) const {
  StepState state = inside_->state(optimizer);
  state.has_averages = optimizer.averages && optimizer.averages->are_made;
  return state;
}

void XlaEngine::load_state(SharedOptimizer& optimizer, const StepState& state) const {
  inside_->load_state(optimizer, state);
  if (optimizer.averages) optimizer.averages->are_made = state.has_averages;
}

}  // namespace accelerate::internal
