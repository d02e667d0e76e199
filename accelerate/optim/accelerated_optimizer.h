/// A user's optimizer after `Accelerator::prepare`: it steps only where gradients are synchronised.
///
/// While gradients accumulate, `step` and `zero_grad` do nothing, so the training loop stays the
/// same with and without accumulation. A handle: copies are the same optimizer.
/// Mirrors: accelerate optimizer.py, AcceleratedOptimizer.
#pragma once

#include <memory>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/base/access.h"
#include "accelerate/precision/grad_scaler.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

namespace internal {
struct SharedOptimizer;
}  // namespace internal

struct OptimizerPolicy {
  /// In fp16: shared by all prepared optimizers of the rank.
  std::shared_ptr<SharedScaler> scaler = nullptr;
  /// An Adam's moments are kept in few bits between its steps; see Fp8Moments.
  bool packs_moments = false;
};

class AcceleratedOptimizer {
 public:
  /// `gradient_state` outlives the handle.
  AcceleratedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                       GradientState& gradient_state, OptimizerPolicy policy = {});

  /// The optimizer's own step, on a synchronising step; otherwise an undefined tensor. In fp16 it
  /// is left out where a gradient is infinite or not a number; collective then.
  /// Errors: c10::ValueError for a closure in fp16, and on TPUs; inside a full_parameters scope
  /// that
  ///         would undo the step.
  at::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr);

  /// Forgets gradients, or sets them to zero; only on a synchronising step.
  void zero_grad(bool set_to_none = true);

  /// Forwarded to optimizers that have other values for evaluation than for training
  /// (optim::TrainMode); the others have one mode.
  void train() const;
  void eval() const;

  /// The optimizer's options and state; see optimizer_state_dict.h, also for the errors. The
  /// tensors are the optimizer's own, except moments that are kept in few bits.
  StateDict state_dict() const;
  /// Tensors go to their parameters' devices.
  void load_state_dict(StateDict state);

  /// The user's optimizer.
  torch::optim::Optimizer& operator*() const;
  torch::optim::Optimizer* operator->() const { return &**this; }
  /// So that LibTorch's schedulers and functions of a program take a prepared optimizer. A step of
  /// the user's optimizer itself knows neither micro-steps nor fp16's scale.
  operator torch::optim::Optimizer&() const { return **this; }

  /// Whether it was not reset.
  explicit operator bool() const { return shared_ != nullptr; }
  /// Releases the optimizer; the handle cannot be used afterwards.
  void reset() { shared_.reset(); }

  /// Whether the last synchronising step() left the parameters as they were, because a gradient was
  /// infinite or not a number in fp16.
  bool step_was_skipped() const;

 private:
  friend struct internal::Access;
  // Null if it was freed.
  const std::shared_ptr<internal::SharedOptimizer>& internals() const { return shared_; }
  internal::SharedOptimizer& alive() const;

  std::shared_ptr<internal::SharedOptimizer> shared_;
  GradientState* gradient_state_;
};

/// Gives every rank's optimizer the state and options (moments, step counts, learning rates) of
/// rank `source`'s, with tensors on `device`. The parameters are not touched. Collective.
/// Errors: c10::Error if the optimizers are for different parameters.
void broadcast_optimizer_state(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                               torch::optim::Optimizer& optimizer, int source, c10::Device device);

/// Moves the optimizer's state, if it has any (for example if it was loaded before the model was
/// moved). Local.
void move_optimizer_state(torch::optim::Optimizer& optimizer, c10::Device device);

}  // namespace accelerate
