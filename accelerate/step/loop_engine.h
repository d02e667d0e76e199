/// The engine of the user's loop: gradients are final after the backward pass but for their scale,
/// and optimizers step where the user says so.
///
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <vector>

#include "accelerate/step/step_engine.h"

namespace accelerate::internal {

class LoopEngine final : public StepEngine {
 public:
  explicit LoopEngine(const StepJob& job) : job_(job) {}

  StepEngine* inside() const override { return nullptr; }

  void check(const torch::optim::Optimizer& optimizer) const override {}
  void prepare(const std::shared_ptr<SharedOptimizer>& optimizer,
               const ProcessGroupPtr& ranks) override {}
  void prepare(const std::shared_ptr<SharedScheduler>& scheduler) override {}
  void prepare_models() override {}
  /// Autograd's, of the loss times the scale where losses are scaled.
  void backward(const at::Tensor& loss, const BackwardOptions& options) override;
  void end_backward() override {}
  void finalise_gradients() override;
  at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                            const ClipGradNormOptions& options) override;
  void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value) override;
  at::Tensor norm() const override { return {}; }

 private:
  const StepJob job_;
};

}  // namespace accelerate::internal
