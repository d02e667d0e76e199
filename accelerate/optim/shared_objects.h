/// What the copies of a prepared optimizer's or scheduler's handle share, and the library works on.
///
/// It lives as long as a handle does, also where the user's object is not owned.
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/optim/optimizer.h>
#include <nlohmann/json_fwd.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "absl/functional/function_ref.h"
#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/optim/optimizer_state_dict.h"
#include "accelerate/optim/state_on_disk.h"
#include "accelerate/precision/fp8_moments.h"
#include "accelerate/precision/grad_scaler.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

namespace optim {
class ReduceLROnPlateau;
class Scheduler;
}  // namespace optim

namespace internal {

struct SharedOptimizer;

/// What a checkpoint keeps of an optimizer's step that is under way.
struct StepState {
  bool was_skipped = false;   ///< whether the last step was left out
  bool has_averages = false;  ///< whether gradients are means over ranks by now; see StepAverages
};

/// Who owns the steps of a prepared optimizer and of its schedule: what a user's calls of them do.
/// This one does what the user asks for; the engines of accelerate/step/ are others. Handles share
/// it, and it may outlive the job.
class StepOwner {
 public:
  virtual ~StepOwner() = default;

  /// What AcceleratedOptimizer::step does where gradients are synchronised. Collective.
  virtual at::Tensor step(SharedOptimizer& optimizer, GradientState& gradient_state,
                          torch::optim::Optimizer::LossClosure closure);
  /// What AcceleratedOptimizer::zero_grad does where gradients are synchronised. Local.
  virtual void zero_grad(SharedOptimizer& optimizer, bool set_to_none);
  /// What AcceleratedScheduler::step does; `move` moves the schedule as its policy says. Local.
  virtual void schedule(absl::FunctionRef<void()> move) { move(); }
  /// For checkpoints. Local.
  virtual StepState state(const SharedOptimizer& optimizer) const;
  virtual void load_state(SharedOptimizer& optimizer, const StepState& state) const;
};

/// Gradients that become means over ranks at an optimizer's step, as on TPUs, and not during the
/// backward pass.
struct StepAverages {
  ProcessGroupPtr group;
  bool are_made = false;  // of this step's gradients
};

struct SharedOptimizer {
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::shared_ptr<StepOwner> owner = std::make_shared<StepOwner>();

  // ---- The parts of a step beside the optimizer's own, in the order in which they surround it.

  /// Absent where gradients are final after the backward pass.
  std::optional<StepAverages> averages;
  std::unique_ptr<Fp8Moments> moments;  // packed except during a step; null: not used
  SharedScaler::User scaler;
  /// What keeps its state on a disk; null: nothing.
  std::unique_ptr<StateOnDisk> on_disk;

  bool step_was_skipped = false;
  /// step() waits for these snapshot readers before it changes the state.
  std::vector<std::weak_ptr<OptimizerStateReader>> readers;
  /// The parameters whose shards it trains: they have the gradients that are not reduced yet.
  std::vector<at::Tensor> whole;
  /// How many scopes will overwrite the shards when they end; by sharded model.
  std::vector<std::shared_ptr<const int>> overwriting_scopes;

  struct StepOptions {
    torch::optim::Optimizer::LossClosure closure = nullptr;
    /// How many elements are updated at a time; see step_in_parts.
    int64_t elements = 0;
  };

  /// Before anything changes the state.
  void wait_for_readers();
  /// A step, whoever asks for it. Collective as AcceleratedOptimizer::step, which documents errors.
  at::Tensor step(GradientState& gradient_state, StepOptions options);
  void zero_grad(bool set_to_none);
  /// The trained parameters of all groups, by their numbers in the state.
  std::vector<at::Tensor> parameters() const;
  /// Whether at least one trained parameter has a gradient.
  bool has_gradients() const;
  /// Finalises the gradients for step(): averages them over ranks if the backward pass did not,
  /// and unscales them. Once per step. Collective.
  void average_and_unscale_gradients(const GradientState& gradient_state);
  /// See optimizer_state_dict.h, also for errors. Moments that are kept in few bits (Fp8Moments)
  /// are float32 there, in tensors of the StateDict's own; the conversion is exact. Local.
  StateDict state_dict(const OptimizerStateDictOptions& options = {});
  void load_state_dict(StateDict state, const OptimizerStateDictOptions& options = {});

 private:
  void average_gradients(const GradientState& gradient_state);
  // The optimizer's own step, unless a gradient is not finite.
  at::Tensor update(StepOptions options);
};

inline at::Tensor StepOwner::step(SharedOptimizer& optimizer, GradientState& gradient_state,
                                  torch::optim::Optimizer::LossClosure closure) {
  return optimizer.step(gradient_state, {.closure = std::move(closure)});
}

inline void StepOwner::zero_grad(SharedOptimizer& optimizer, bool set_to_none) {
  optimizer.zero_grad(set_to_none);
}

inline StepState StepOwner::state(const SharedOptimizer& optimizer) const {
  return {.was_skipped = optimizer.step_was_skipped};
}

inline void StepOwner::load_state(SharedOptimizer& optimizer, const StepState& state) const {
  optimizer.step_was_skipped = state.was_skipped;
}

struct SharedScheduler {
  torch::optim::LRScheduler* scheduler = nullptr;
  std::shared_ptr<torch::optim::LRScheduler> owned = nullptr;  // the same, if it is not the user's
  optim::Scheduler* ours = nullptr;                            // the same, if it is one
  optim::ReduceLROnPlateau* plateau = nullptr;                 // the same, if it is one
  // Not owned: an optimizer may be freed before its scheduler.
  std::vector<std::weak_ptr<const SharedOptimizer>> optimizers;
  bool knows_its_own = false;  // `optimizers` holds exactly the optimizer it drives
  std::shared_ptr<StepOwner> owner = std::make_shared<StepOwner>();
  int64_t steps = 0;        // of the scheduler
  int64_t asked_steps = 0;  // the same, had its length been no limit
  bool warned = false;

  void step();
  /// Whether an optimizer that it follows has left out its last step.
  bool follows_skipped_step() const;
  bool follows(const SharedOptimizer& optimizer) const;
  nlohmann::ordered_json state_dict() const;
  void load_state_dict(const nlohmann::ordered_json& state);
  /// An optimizer whose skipped steps may not count.
  void add(const std::shared_ptr<const SharedOptimizer>& optimizer);
  /// Synchronises the schedule with rank `source`'s. Collective.
  void synchronise(const c10::intrusive_ptr<c10d::ProcessGroup>& group, int source);
};

}  // namespace internal
}  // namespace accelerate
