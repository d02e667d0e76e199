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

#include "accelerate/config/zero_config.h"
#include "accelerate/optim/schedulers/scheduler.h"

namespace accelerate::optim {

/// Linear, or as the logarithm of the step.
using WarmupType = ZeroWarmupType;

/// What they have in common.
class BatchSchedule : public Scheduler {
 public:
  /// The iteration last made, from 0; -1 before the first one.
  int64_t last_batch_iteration() const { return last_epoch() + first_iteration_; }

 protected:
  BatchSchedule(torch::optim::Optimizer& optimizer, int64_t last_batch_iteration)
      : Scheduler(optimizer), first_iteration_(last_batch_iteration) {}

  /// The rates after an iteration, or before the first one: -1.
  virtual std::vector<double> rates_after(int64_t iteration) = 0;
  /// The step that makes an iteration; absent if it is made already when the schedule begins.
  std::optional<int64_t> step_of(int64_t iteration) const {
    const int64_t step = iteration - first_iteration_;
    return step > 0 ? std::optional(step) : std::nullopt;
  }

  /// Kinds call these two for what they add to them.
  void archive(StateArchive& state) override;
  void check() const override;

 private:
  std::vector<double> rates_at(int64_t epoch) final;

  int64_t first_iteration_;  // last_batch_iteration before the first step
};

/// A rise from the smallest rates to the largest ones, and what follows it.
class WarmupSchedule : public BatchSchedule {
 protected:
  /// Rates by group; `kind` is the schedule's name in errors, and lives as long as it.
  WarmupSchedule(const char* kind, torch::optim::Optimizer& optimizer, int64_t last_batch_iteration,
                 const PerGroup& min_lr, const std::optional<PerGroup>& max_lr,
                 int64_t warmup_num_steps, WarmupType type);

  int64_t warmup_num_steps() const;
  /// After an iteration behind the warm-up: the part of the way from the smallest rates to the
  /// largest.
  virtual double height_after(int64_t iteration) const = 0;

  void archive(StateArchive& state) override;
  void check() const override;

 private:
  std::vector<double> rates_after(int64_t iteration) final;

  const char* const kind_;
  std::vector<double> min_lrs_;
  std::vector<double> max_lrs_;
  int64_t warmup_num_steps_;
  WarmupType warmup_type_;
};

struct WarmupLROptions {
  PerGroup warmup_min_lr = 0.0;
  /// Absent: each group's rate.
  std::optional<PerGroup> warmup_max_lr = std::nullopt;
  int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::kLog;
  int64_t last_batch_iteration = -1;
};

/// Rises from the smallest rate to the largest within warmup_num_steps iterations, and stays.
class WarmupLR final : public WarmupSchedule {
 public:
  using Options = WarmupLROptions;
  explicit WarmupLR(torch::optim::Optimizer& optimizer, const Options& options = {});

 private:
  double height_after(int64_t /*iteration*/) const override { return 1; }
};

struct WarmupDecayLROptions {
  int64_t total_num_steps = 0;  ///< required
  PerGroup warmup_min_lr = 0.0;
  PerGroup warmup_max_lr = 0.001;
  int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::kLog;
  int64_t last_batch_iteration = -1;
};

/// Rises as WarmupLR does, then falls linearly: at iteration total_num_steps it is back at the
/// smallest rate, and stays there.
class WarmupDecayLR final : public WarmupSchedule {
 public:
  using Options = WarmupDecayLROptions;
  WarmupDecayLR(torch::optim::Optimizer& optimizer, const Options& options);

  std::optional<int64_t> end() const override { return step_of(total_num_steps_); }

 private:
  double height_after(int64_t iteration) const override;
  void archive(StateArchive& state) override;
  void check() const override;

  int64_t total_num_steps_;
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

/// Rises from a part of each group's rate to the whole of it within warmup_num_steps iterations,
/// then falls along half a cosine to another part until total_num_steps, and stays. Before the
/// first step the rate is 0.
class WarmupCosineLR final : public BatchSchedule {
 public:
  using Options = WarmupCosineLROptions;
  WarmupCosineLR(torch::optim::Optimizer& optimizer, const Options& options);

  std::optional<int64_t> end() const override { return step_of(options_.total_num_steps); }

 private:
  std::vector<double> rates_after(int64_t iteration) override;
  void archive(StateArchive& state) override;
  void check() const override;

  Options options_;
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

/// One cycle up and down, then a decay.
///
/// The momentum is the first of an optimizer's betas; as in DeepSpeed, the second one becomes 0.99.
/// An optimizer without betas, such as SGD, keeps its momentum: see cycles_momentum().
/// Source: Smith, "A Disciplined Approach to Neural Network Hyper-Parameters: Part 1", 2018.
class OneCycle final : public BatchSchedule {
 public:
  using Options = OneCycleOptions;
  OneCycle(torch::optim::Optimizer& optimizer, const Options& options);

  /// The end of the cycle, unless a decay follows.
  std::optional<int64_t> end() const override;
  /// Whether cycle_momentum is set and the optimizer has betas.
  bool cycles_momentum() const { return options_.cycle_momentum; }

 private:
  // From 0, where the rate is smallest, to 1.
  double height(int64_t iteration) const;
  int64_t total_size() const;

  std::vector<double> rates_after(int64_t iteration) override;
  void archive(StateArchive& state) override;
  void check() const override;

  Options options_;
  std::vector<double> min_lrs_;
  std::vector<double> max_lrs_;
  std::vector<double> min_moms_;
  std::vector<double> max_moms_;
};

struct LRRangeTestOptions {
  PerGroup lr_range_test_min_lr = 1e-3;
  int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1.0;
  /// Rise at once after each lr_range_test_step_size iterations, not in each of them.
  bool lr_range_test_staircase = false;
  int64_t last_batch_iteration = -1;
};

/// Rises by lr_range_test_step_rate times the first rate in lr_range_test_step_size iterations.
/// Source: as OneCycle's.
class LRRangeTest final : public BatchSchedule {
 public:
  using Options = LRRangeTestOptions;
  explicit LRRangeTest(torch::optim::Optimizer& optimizer, const Options& options = {});

 private:
  std::vector<double> rates_after(int64_t iteration) override;
  void archive(StateArchive& state) override;
  void check() const override;

  Options options_;
  std::vector<double> min_lrs_;
};

}  // namespace accelerate::optim
