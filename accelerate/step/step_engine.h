/// How a job makes its steps: what is special at the backward pass, at clipping, at the step and at
/// zero_grad, so that nothing else asks which kind of job it is in.
///
/// A job has one chain of engines, each around the next one as techniques are around a forward
/// pass. The innermost is the user's loop: it runs autograd, and steps where the user says so.
///
///     ZeroEngine    clips, steps, zeroes and schedules behind the backward pass
///     XlaEngine     averages gradients over ranks at the step
///     LomoEngine    runs the backward pass of an optimizer that steps during the pass
///     LoopEngine    the user's loop
///
/// A backward pass is the whole chain's, because a loss may be of several models, one scaler scales
/// the loss, and one window of accumulation says where a step ends. An optimizer keeps the chain
/// that it was prepared under as its StepOwner, so what the user's calls of it do never changes: an
/// optimizer that was prepared before ZeRO's engine was there steps by its user.
///
/// engines.cc makes the chain from the inside to the outside, and a new engine has its place there:
/// around the engines whose verbs it calls or replaces. Engines that run the backward pass are
/// innermost, those that change its gradients surround them, and those that make steps of the
/// gradients are outermost. An engine of which a job learns while it prepares objects surrounds the
/// chain that is there, as ZeRO's does.
///
/// The verbs of an optimizer and of a schedule (step, zero_grad, schedule, state) are those of
/// StepOwner. No verb has a forward pass, because programs call their models themselves, and where
/// a window of micro-batches does (train_batch.cc), it calls backward() for each of its losses. The
/// stages of a pipeline but the last have no loss, and run autograd from the gradients that they
/// get. So an engine that changes backward passes works with one rank along pp; with several,
/// prepare refuses optimizers that step in them.
///
/// Errors: as documented at the Accelerator's methods.
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include "absl/functional/function_ref.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/optim/clip_grad.h"
#include "accelerate/optim/shared_objects.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/step/backward_options.h"

namespace accelerate::internal {

struct TrainingState;

/// What engines work on. The objects behind the references outlive the job, and an engine may
/// outlive both: the verbs of StepOwner, which handles of freed jobs may call, use their arguments
/// alone.
struct StepJob {
  c10::Device device;
  GradientState& gradients;
  TrainingState& training;
};

/// An engine around another engine, which does every verb that this engine does not override. The
/// innermost has none inside: it overrides backward and the verbs of gradients, and others that it
/// does not override do nothing, or what a StepOwner does.
class StepEngine : public StepOwner {
 public:
  explicit StepEngine(const StepJob& job, std::shared_ptr<StepEngine> inside = nullptr)
      : job_(job), inside_(std::move(inside)) {}

  /// The engine that this one surrounds; null for the innermost.
  StepEngine* inside() const { return inside_.get(); }

  // ---- Preparing.

  /// Before an optimizer gets its handle. Local. Errors: c10::ValueError for an optimizer that
  /// cannot step in this job.
  virtual void check(const torch::optim::Optimizer& optimizer) const {
    if (inside_ != nullptr) inside_->check(optimizer);
  }
  /// Gives the optimizer what its steps need, and remembers it. `ranks`: those that average
  /// gradients; null for one. Local.
  virtual void prepare(const std::shared_ptr<SharedOptimizer>& optimizer,
                       const ProcessGroupPtr& ranks) {
    if (inside_ != nullptr) inside_->prepare(optimizer, ranks);
  }
  /// The same for the schedule that a placeholder became. Local.
  virtual void prepare(const std::shared_ptr<SharedScheduler>& scheduler) {
    if (inside_ != nullptr) inside_->prepare(scheduler);
  }
  /// To be called when a model or an optimizer was prepared: decides which models synchronise their
  /// gradients. Local. Errors: c10::ValueError for a model of which an engine's optimizer has some
  /// parameters only, but needs all or none.
  virtual void prepare_models() {
    if (inside_ != nullptr) inside_->prepare_models();
  }

  // ---- The backward pass.

  /// A backward pass of a loss that is divided by micro-steps or tokens already. Collective where
  /// gradients are synchronised.
  virtual void backward(const at::Tensor& loss, const BackwardOptions& options) {
    inside_->backward(loss, options);
  }
  /// What follows a backward pass where the engine makes steps: the step, if gradients are
  /// synchronised. Collective.
  virtual void end_backward() {
    if (inside_ != nullptr) inside_->end_backward();
  }

  // ---- Gradients, where they are synchronised. Collective.

  /// Makes gradients what the optimizers' steps will see: means over ranks, without a scale.
  virtual void finalise_gradients() { inside_->finalise_gradients(); }
  /// As Accelerator::clip_grad_norm_; where the engine clips, the norm that it clipped.
  virtual at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                                    const ClipGradNormOptions& options) {
    return inside_->clip_grad_norm(parameters, max_norm, options);
  }
  /// As Accelerator::clip_grad_value_.
  virtual void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value) {
    inside_->clip_grad_value(parameters, clip_value);
  }
  /// The norm of the last step's gradients before the engine clipped them; undefined before that
  /// step, and where the engine clips nothing. Local.
  virtual at::Tensor norm() const { return inside_ != nullptr ? inside_->norm() : at::Tensor(); }

  at::Tensor step(SharedOptimizer& optimizer, GradientState& gradient_state,
                  torch::optim::Optimizer::LossClosure closure) override {
    return owner().step(optimizer, gradient_state, std::move(closure));
  }
  void zero_grad(SharedOptimizer& optimizer, bool set_to_none) override {
    owner().zero_grad(optimizer, set_to_none);
  }
  void schedule(absl::FunctionRef<void()> move) override { owner().schedule(move); }
  StepState state(const SharedOptimizer& optimizer) const override {
    return owner().state(optimizer);
  }
  void load_state(SharedOptimizer& optimizer, const StepState& state) const override {
    owner().load_state(optimizer, state);
  }

 protected:
  const StepJob job_;
  const std::shared_ptr<StepEngine> inside_;

 private:
  // Who does the verbs of a StepOwner that this engine does not override.
  StepOwner& owner() const {
    static StepOwner plain;
    return inside_ != nullptr ? *inside_ : plain;
  }
};

/// The engine of type T in the chain; null if there is none.
template <typename T>
T* find_engine(StepEngine* engine) {
  for (; engine != nullptr; engine = engine->inside()) {
    if (auto* found = dynamic_cast<T*>(engine)) return found;
  }
  return nullptr;
}

}  // namespace accelerate::internal
