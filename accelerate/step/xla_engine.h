/// The engine of TPUs, where gradients are averaged over ranks at the optimizer's step, or before
/// where gradients are clipped, and not during the backward pass.
///
/// Threads: the rank's thread.
/// Mirrors: accelerate optimizer.py, AcceleratedOptimizer.step on XLA devices.
#pragma once

#include <memory>
#include <vector>

#include "accelerate/optim/lomo.h"
#include "accelerate/step/step_engine.h"
#include "accelerate/step/training_state.h"

namespace accelerate::internal {

class XlaEngine final : public StepEngine {
 public:
  using StepEngine::prepare;
  using StepEngine::StepEngine;

  /// The optimizer's step averages its gradients, unless the optimizer reduces them by itself.
  void prepare(const std::shared_ptr<SharedOptimizer>& optimizer,
               const ProcessGroupPtr& ranks) override {
    inside_->prepare(optimizer, ranks);
    const bool reduces =
        dynamic_cast<const optim::FusedBackwardOptimizer*>(optimizer->optimizer.get()) != nullptr;
    if (ranks != nullptr && !reduces) optimizer->averages = StepAverages{.group = ranks};
  }

  /// Optimizers have to average the new gradients.
  void backward(const at::Tensor& loss, const BackwardOptions& options) override {
    for_each_alive(job_.training.optimizers, [](const auto& optimizer) {
      if (optimizer->averages) optimizer->averages->are_made = false;
    });
    job_.gradients.set_is_xla_gradients_synced(false);
    inside_->backward(loss, options);
  }

  /// Averages the gradients of all optimizers, unless the program says that it has.
  void finalise_gradients() override {
    inside_->finalise_gradients();
    job_.gradients.set_is_xla_gradients_synced(true);
  }

  at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                            const ClipGradNormOptions& options) override {
    finalise_gradients();
    return inside_->clip_grad_norm(parameters, max_norm, options);
  }

  void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value) override {
    finalise_gradients();
    inside_->clip_grad_value(parameters, clip_value);
  }

  StepState state(const SharedOptimizer& optimizer) const override {
    StepState state = inside_->state(optimizer);
    state.has_averages = optimizer.averages && optimizer.averages->are_made;
    return state;
  }

  void load_state(SharedOptimizer& optimizer, const StepState& state) const override {
    inside_->load_state(optimizer, state);
    if (optimizer.averages) optimizer.averages->are_made = state.has_averages;
  }
};

}  // namespace accelerate::internal
