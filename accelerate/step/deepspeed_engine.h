/// The engine of a job with a deepspeed_plugin, under HF Accelerate's names: its backward pass
/// makes the optimizer's step as well. The Accelerator's own backward() does the same.
///
/// An AcceleratedOptimizer of such a job is what HF Accelerate calls DeepSpeedOptimizerWrapper:
/// `step` and `zero_grad` have no effect, and `step_was_skipped` tells of overflows. An
/// AcceleratedScheduler that was made from a DummyScheduler is its DeepSpeedSchedulerWrapper.
///
/// Threads: the rank's thread.
/// Mirrors: accelerate utils/deepspeed.py, DeepSpeedEngineWrapper, DeepSpeedOptimizerWrapper and
///          DeepSpeedSchedulerWrapper.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/optim/accelerated_scheduler.h"
#include "accelerate/step/backward_options.h"
#include "accelerate/step/training_step.h"

namespace accelerate {

using DeepSpeedOptimizerWrapper = AcceleratedOptimizer;
using DeepSpeedSchedulerWrapper = AcceleratedScheduler;

class DeepSpeedEngineWrapper {
 public:
  /// `step` outlives this.
  explicit DeepSpeedEngineWrapper(internal::TrainingStep& step) : step_(step) {}

  /// A backward pass, and the optimizer's step behind it where gradients are synchronised.
  /// Collective. Errors: those of Accelerator::backward.
  void backward(const at::Tensor& loss, bool sync_gradients = true,
                const BackwardOptions& options = {}) {
    step_.engine_backward(loss, sync_gradients, options);
  }

  /// The norm of the last step's gradients before they were clipped; absent before the first step.
  /// Waits for the device.
  std::optional<double> get_global_grad_norm() const {
    const at::Tensor norm = step_.engine_norm();
    return norm.defined() ? std::optional(norm.item<double>()) : std::nullopt;
  }

 private:
  internal::TrainingStep& step_;
};

}  // namespace accelerate
