/// DeepSpeed's schedules: WarmupLR, WarmupDecayLR and WarmupCosineLR rise and then stay or fall;
/// OneCycle rises, falls and decays, with the momentum against the rate; LRRangeTest rises without
/// an end, to find the rate at which training fails.
///
/// Construction sets the rates that come before the first step; the rates after the first step are
/// those of iteration 0. A schedule with a `last_batch_iteration` of 0 or more continues after that
/// iteration and leaves the rates alone until its first step. In a state `last_batch_iteration` is
/// the iteration last made, as in DeepSpeed's.
///
/// Errors:  c10::ValueError for sizes and numbers of steps out of range.
/// Mirrors: deepspeed/runtime/lr_schedules.py, the classes of these names.
/// Differs: warmup_num_steps may be 0, which counts as 2, as 1 does; OneCycle refuses a momentum of
///          1 or more, to which decay_mom_rate leads.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "accelerate/base/fields.h"
#include "accelerate/config/zero_config.h"
#include "accelerate/optim/schedulers/scheduler.h"

namespace accelerate::optim {

/// Linear, or as the logarithm of the step.
using WarmupType = ZeroWarmupType;

/// A schedule whose rates, and whose saved arguments, follow from its options and from the base
/// rates. What a kind makes of them is in deepspeed.cc.
template <typename KindOptions>
class BatchSchedule : public Scheduler {
 public:
  using Options = KindOptions;
  BatchSchedule(torch::optim::Optimizer& optimizer, const Options& options);

  /// The iteration last made, from 0; -1 before the first one.
  int64_t last_batch_iteration() const { return last_epoch() + first_iteration_; }

 protected:
  /// The step that makes an iteration; absent if it is made already when the schedule begins.
  std::optional<int64_t> step_of(int64_t iteration) const {
    const int64_t step = iteration - first_iteration_;
    return step > 0 ? std::optional(step) : std::nullopt;
  }

  Options options_;

 private:
  std::vector<double> rates_at(int64_t epoch) final;
  void archive(StateArchive& state) final;
  void check() const final;

  int64_t first_iteration_;  // last_batch_iteration before the first step
};

struct WarmupLROptions {
  PerGroup warmup_min_lr = 0.0;
  /// Absent: each group's rate.
  std::optional<PerGroup> warmup_max_lr = std::nullopt;
  int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::kLog;
  int64_t last_batch_iteration = -1;
};
ACCELERATE_FIELDS(WarmupLROptions, warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type)

/// Rises from the smallest rate to the largest within warmup_num_steps iterations, and stays.
class WarmupLR final : public BatchSchedule<WarmupLROptions> {
 public:
  explicit WarmupLR(torch::optim::Optimizer& optimizer, const Options& options = {})
      : BatchSchedule(optimizer, options) {}
};

struct WarmupDecayLROptions {
  int64_t total_num_steps = 0;  ///< required
  PerGroup warmup_min_lr = 0.0;
  PerGroup warmup_max_lr = 0.001;
  int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::kLog;
  int64_t last_batch_iteration = -1;
};
ACCELERATE_FIELDS(WarmupDecayLROptions, total_num_steps, warmup_min_lr, warmup_max_lr,
                  warmup_num_steps, warmup_type)

/// Rises as WarmupLR does, then falls linearly: at iteration total_num_steps it is back at the
/// smallest rate, and stays there.
class WarmupDecayLR final : public BatchSchedule<WarmupDecayLROptions> {
 public:
  using BatchSchedule::BatchSchedule;

  std::optional<int64_t> end() const override { return step_of(options_.total_num_steps); }
};

struct WarmupCosineLROptions {
  int64_t total_num_steps = 0;  ///< required
  /// Parts of the rates that the groups have.
  double warmup_min_ratio = 0;
  double cos_min_ratio = 0.0001;
  int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::kLog;
  int64_t last_batch_iteration = -1;
};
ACCELERATE_FIELDS(WarmupCosineLROptions, total_num_steps, warmup_min_ratio, warmup_num_steps,
                  cos_min_ratio, warmup_type)

/// Rises from a part of each group's rate to the whole of it within warmup_num_steps iterations,
/// then falls along half a cosine to another part until total_num_steps, and stays. Before the
/// first step the rate is 0.
class WarmupCosineLR final : public BatchSchedule<WarmupCosineLROptions> {
 public:
  using BatchSchedule::BatchSchedule;

  std::optional<int64_t> end() const override { return step_of(options_.total_num_steps); }
};

struct OneCycleOptions {
  PerGroup cycle_min_lr;  ///< required
  PerGroup cycle_max_lr;  ///< required
  /// After the cycle the rate is cycle_min_lr / (1 + decay_lr_rate * n) after n times
  /// decay_step_size iterations, whole or not; if one of the two is 0, cycle_min_lr.
  double decay_lr_rate = 0;
  int64_t cycle_first_step_size = 2000;
  /// Absent: as the first.
  std::optional<int64_t> cycle_second_step_size = std::nullopt;
  /// Into how many stairs a half of the cycle is divided; 0: it is smooth.
  int64_t cycle_first_stair_count = 0;
  /// Absent: as the first.
  std::optional<int64_t> cycle_second_stair_count = std::nullopt;
  int64_t decay_step_size = 0;
  bool cycle_momentum = true;
  /// The momentum where the rate is largest, and before the first step.
  PerGroup cycle_min_mom = 0.8;
  PerGroup cycle_max_mom = 0.9;
  /// As decay_lr_rate, but the momentum grows: it is multiplied.
  double decay_mom_rate = 0;
  int64_t last_batch_iteration = -1;
};
ACCELERATE_FIELDS(OneCycleOptions, cycle_min_lr, cycle_max_lr, decay_lr_rate, cycle_first_step_size,
                  cycle_second_step_size, cycle_first_stair_count, cycle_second_stair_count,
                  decay_step_size, cycle_momentum, cycle_min_mom, cycle_max_mom, decay_mom_rate)

/// One cycle up and down, then a decay.
///
/// The momentum is the first of an optimizer's betas; as in DeepSpeed, the second one becomes 0.99.
/// An optimizer without betas, such as SGD, keeps its momentum: see cycles_momentum().
/// Source: Smith, "A Disciplined Approach to Neural Network Hyper-Parameters: Part 1", 2018.
class OneCycle final : public BatchSchedule<OneCycleOptions> {
 public:
  using BatchSchedule::BatchSchedule;

  /// The end of the cycle, unless a decay follows.
  std::optional<int64_t> end() const override;
  /// Whether cycle_momentum is set and the optimizer has betas.
  bool cycles_momentum() const { return options_.cycle_momentum; }
};

struct LRRangeTestOptions {
  PerGroup lr_range_test_min_lr = 1e-3;
  int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1.0;
  /// Rise at once after each lr_range_test_step_size iterations, not in each of them.
  bool lr_range_test_staircase = false;
  int64_t last_batch_iteration = -1;
};
ACCELERATE_FIELDS(LRRangeTestOptions, lr_range_test_min_lr, lr_range_test_step_size,
                  lr_range_test_step_rate, lr_range_test_staircase)

/// Rises by lr_range_test_step_rate times the first rate in lr_range_test_step_size iterations.
/// Source: as OneCycle's.
class LRRangeTest final : public BatchSchedule<LRRangeTestOptions> {
 public:
  explicit LRRangeTest(torch::optim::Optimizer& optimizer, const Options& options = {})
      : BatchSchedule(optimizer, options) {}
};

}  // namespace accelerate::optim
