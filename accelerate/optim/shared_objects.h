/// What the copies of a prepared optimizer's or scheduler's handle share, and the library works on.
///
/// It lives as long as a handle does, also where the user's object is not owned.
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/optim/optimizer.h>
#include <nlohmann/json_fwd.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/comm/operations.h"
#include "accelerate/optim/state_on_disk.h"
#include "accelerate/precision/fp8_moments.h"
#include "accelerate/precision/grad_scaler.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/tensors/state_dict.h"

namespace torch::optim {
class LRScheduler;
}  // namespace torch::optim

namespace accelerate {

namespace optim {
class ReduceLROnPlateau;
class Scheduler;
}  // namespace optim

namespace internal {

struct SharedOptimizer {
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  SharedScaler::User scaler;
  ProcessGroupPtr averages_over;
  std::unique_ptr<Fp8Moments> moments;  // packed except during a step; null: not used
  bool are_averaged = false;            // the gradients of this step
  bool step_was_skipped = false;
  /// Whether the job's backward pass makes its steps; the user's calls of step and zero_grad have
  /// no effect then.
  bool steps_in_backward = false;
  /// What the backward pass clips gradients to before its step; 0: it does not.
  double max_norm = 0;
  /// See step_in_parts.
  int64_t part_elements = 0;
  /// What keeps its state on a disk; null: nothing.
  std::unique_ptr<StateOnDisk> on_disk;
  /// step() waits for these snapshot readers before it changes the state.
  std::vector<std::weak_ptr<OptimizerStateReader>> readers;
  /// The parameters whose shards it trains: they have the gradients that are not reduced yet.
  std::vector<at::Tensor> whole;
  /// How many scopes will overwrite the shards when they end; by sharded model.
  std::vector<std::shared_ptr<const int>> overwriting_scopes;

  /// Before anything changes the state.
  void wait_for_readers();
  /// A step, whoever asks for it. Collective as AcceleratedOptimizer::step, which documents errors.
  at::Tensor step(GradientState& gradient_state, torch::optim::Optimizer::LossClosure closure);
  void zero_grad(bool set_to_none);
  /// The trained parameters of all groups.
  std::vector<at::Tensor> parameters() const;
  /// Whether at least one trained parameter has a gradient.
  bool has_gradients() const;
  /// Finalises the gradients for step(): averages them over ranks if the backward pass did not,
  /// and unscales them. Once per step. Collective.
  void settle_gradients(const GradientState& gradient_state);
  void average_gradients(const GradientState& gradient_state);

 private:
  // The optimizer's own step, unless a gradient is not finite.
  at::Tensor update(torch::optim::Optimizer::LossClosure closure);
};

struct SharedScheduler {
  torch::optim::LRScheduler* scheduler = nullptr;
  std::shared_ptr<torch::optim::LRScheduler> owned = nullptr;  // the same, if it is not the user's
  optim::Scheduler* ours = nullptr;                            // the same, if it is one
  optim::ReduceLROnPlateau* plateau = nullptr;                 // the same, if it is one
  // Not owned: an optimizer may be freed before its scheduler.
  std::vector<std::weak_ptr<const SharedOptimizer>> optimizers;
  bool knows_its_own = false;  // `optimizers` holds exactly the optimizer it drives
  /// As SharedOptimizer's.
  bool steps_in_backward = false;
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
  void catch_up(const c10::intrusive_ptr<c10d::ProcessGroup>& group, int source);
};

}  // namespace internal
}  // namespace accelerate
