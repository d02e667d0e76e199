/// The engine of a job with a deepspeed_plugin: behind a backward pass that synchronises gradients
/// it clips them, makes the optimizers' steps, lets gradients go, and moves the schedules that
/// placeholders became. The user's calls for these have no effect.
///
/// It steps the optimizers that have gradients then: those of the models that the loss was of, of
/// which ranks have gradients of the same ones. What it steps lives as long as the job's prepared
/// objects, since programs need not keep handles that they need not call.
///
/// Errors:  a step that could not be made lets gradients go as well.
/// Threads: the rank's thread.
/// Mirrors: deepspeed/runtime/engine.py, backward and step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerate/step/step_engine.h"

namespace accelerate::internal {

class ZeroEngine final : public StepEngine {
 public:
  using StepEngine::StepEngine;

  /// How the steps of one optimizer are made.
  struct Steps {
    /// Gradients are clipped to this norm; 0: they are not clipped.
    double max_norm = 0;
    /// How many elements are updated at a time; see step_in_parts.
    int64_t elements = 0;
  };
  /// For the optimizers that are prepared from now on. Local.
  void set_steps(const Steps& steps) { steps_ = steps; }

  void prepare(const std::shared_ptr<SharedOptimizer>& optimizer,
               const ProcessGroupPtr& ranks) override;
  void prepare(const std::shared_ptr<SharedScheduler>& scheduler) override;
  /// State on a disk is read while the pass runs.
  void backward(const at::Tensor& loss, const BackwardOptions& options) override;
  /// Errors: also those of ModelState::check_reads.
  void end_backward() override;
  /// The norm of the last step; zero before it.
  at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                            const ClipGradNormOptions& options) override;
  /// Errors: c10::ValueError always, since there are no gradients left.
  void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value) override;
  at::Tensor norm() const override { return norm_; }

  /// No effect. Errors: c10::ValueError for a closure.
  at::Tensor step(SharedOptimizer& optimizer, GradientState& gradient_state,
                  torch::optim::Optimizer::LossClosure closure) override;
  void zero_grad(SharedOptimizer& optimizer, bool set_to_none) override {}
  void schedule(absl::FunctionRef<void()> move) override {}

 private:
  // Not owned: an optimizer shares its engine.
  struct Stepped {
    std::weak_ptr<SharedOptimizer> optimizer;
    Steps steps;
  };
  void make_step(SharedOptimizer& optimizer, const Steps& steps);

  Steps steps_;
  std::vector<Stepped> optimizers_;
  std::vector<std::weak_ptr<SharedScheduler>> schedulers_;
  at::Tensor norm_;
};

}  // namespace accelerate::internal
