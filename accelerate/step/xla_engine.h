/// The engine of TPUs, where gradients are averaged over ranks at the optimizer's step, or before
/// where gradients are clipped, and not during the backward pass.
///
/// Threads: the rank's thread.
/// Mirrors: accelerate optimizer.py, AcceleratedOptimizer.step on XLA devices.
#pragma once

#include <memory>
#include <vector>

#include "accelerate/step/step_engine.h"

namespace accelerate::internal {

class XlaEngine final : public SurroundingEngine {
 public:
  using SurroundingEngine::prepare;
  using SurroundingEngine::SurroundingEngine;

  /// The optimizer's step averages its gradients, unless the optimizer reduces them by itself.
  void prepare(const std::shared_ptr<SharedOptimizer>& optimizer,
               const ProcessGroupPtr& ranks) override;
  /// Optimizers have to average the new gradients.
  void backward(const at::Tensor& loss, const BackwardOptions& options) override;
  /// Averages the gradients of all optimizers, unless the program says that it has.
  void finalise_gradients() override;
  at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                            const ClipGradNormOptions& options) override;
  void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value) override;

  StepState state(const SharedOptimizer& optimizer) const override;
  void load_state(SharedOptimizer& optimizer, const StepState& state) const override;
};

}  // namespace accelerate::internal
