/// A user's learning-rate scheduler after `Accelerator::prepare`: one call of `step` per
/// micro-step, and it moves only where the optimizer did.
///
/// SchedulerUnit determines by how much. It does not move while gradients accumulate, unless
/// GradientAccumulationPlugin::adjust_scheduler is set, nor for a step that an optimizer skipped.
/// A scheduler that knows its length (total_steps) is not stepped beyond it.
///
/// A schedule of optimizer steps in a job that counts every process's batches ends too early: rank
/// 0 warns, once, when training has continued for half the length of a schedule of this library
/// (Scheduler::end) after its end.
/// Mirrors: accelerate scheduler.py, AcceleratedScheduler. See accelerate/docs/schedulers.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "accelerate/base/access.h"
#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/optim/accelerated_optimizer.h"
#include "accelerate/state/gradient_state.h"

namespace accelerate {

namespace internal {
struct SharedScheduler;
}  // namespace internal

/// The unit of a prepared scheduler's schedule.
enum class SchedulerUnit {
  /// One batch of one process: an optimizer step advances it by as many as there are shares of the
  /// data, or by one with split_batches. For schedules written for one process.
  kPerProcessBatch,
  /// One optimizer step, whatever the number of processes.
  kPerOptimizerStep,
};

struct SchedulerPolicy {
  /// How many shares the data is divided into; see DataShare in accelerate/mesh/device_mesh.h.
  int num_shares = 1;
  bool split_batches = false;
  /// Off: every call is forwarded as it comes.
  bool step_with_optimizer = true;
  SchedulerUnit unit = SchedulerUnit::kPerProcessBatch;
};

class AcceleratedScheduler {
 public:
  /// `scheduler` and `gradient_state` outlive the handle. Of the optimizers, whose skipped steps do
  /// not count, only that which it drives matters, if it is known and among them.
  AcceleratedScheduler(torch::optim::LRScheduler& scheduler, const GradientState& gradient_state,
                       SchedulerPolicy policy,
                       const std::vector<AcceleratedOptimizer>& optimizers = {});

  /// With a `metric`, for ReduceLROnPlateau: one step, whenever it is called and whatever the unit,
  /// because it counts evaluations. All ranks must pass the same metric. Local.
  /// Errors: c10::ValueError for a metric where none is needed, or none where one is.
  void step(std::optional<double> metric = std::nullopt);

  /// The groups' rates after its last step; see optim::Scheduler. LibTorch's own schedulers do not
  /// keep them: of these it is get_lr().
  std::vector<double> get_last_lr() const;
  /// The rates that its optimizer's groups have now, whoever set them.
  std::vector<double> get_lr() const;
  /// Writes, on each node's first rank and if `is_verbose`, that group number `group` gets the rate
  /// `lr`, with the epoch if it is given.
  void print_lr(bool is_verbose, int64_t group, double lr,
                std::optional<int64_t> epoch = std::nullopt) const;

  /// See optim::Scheduler. LibTorch's own schedulers, and others derived from its
  /// LRScheduler, have {"_step_count": 3}, which is all that the base class keeps; what else such
  /// a class keeps, its constructor must bring back. Rates are the optimizer's state.
  /// Errors: c10::ValueError naming the field that does not match; the scheduler is unchanged then.
  nlohmann::ordered_json state_dict() const;
  void load_state_dict(const nlohmann::ordered_json& state);

  /// The user's scheduler.
  torch::optim::LRScheduler& operator*() const;
  torch::optim::LRScheduler* operator->() const { return &**this; }

  /// Whether it was not reset.
  explicit operator bool() const { return shared_ != nullptr; }
  /// Releases the scheduler; the handle cannot be used afterwards.
  void reset() { shared_.reset(); }

 private:
  friend struct internal::Access;
  // Null if it was freed.
  const std::shared_ptr<internal::SharedScheduler>& internals() const { return shared_; }
  void move(std::optional<double> metric);
  void advance(int steps);
  void warn_if_over(int steps);
  const internal::SharedScheduler& alive() const;

  std::shared_ptr<internal::SharedScheduler> shared_;
  const GradientState* gradient_state_;
  SchedulerPolicy policy_;
};

}  // namespace accelerate
