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

#include <ATen/core/Tensor.h>

#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/optim/accelerated_scheduler.h"

namespace accelerate {

namespace internal {
class TrainingStep;
}  // namespace internal

using DeepSpeedOptimizerWrapper = AcceleratedOptimizer;
using DeepSpeedSchedulerWrapper = AcceleratedScheduler;

class DeepSpeedEngineWrapper {
 public:
  /// `step` outlives this.
  explicit DeepSpeedEngineWrapper(internal::TrainingStep& step) : step_(step) {}

  /// A backward pass, and the optimizer's step behind it where gradients are synchronised.
  /// Collective. Errors: those of Accelerator::backward.
  void backward(const at::Tensor& loss, bool sync_gradients = true);

  /// The norm of the last step's gradients before they were clipped. Waits for the device.
  /// Errors: c10::ValueError before the first step.
  double get_global_grad_norm() const;

 private:
  internal::TrainingStep& step_;
};

}  // namespace accelerate
