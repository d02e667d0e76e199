/// Schedules given by a function of the step: LambdaLR, MultiplicativeLR, and those of common
/// practice in language modelling, which rise linearly from 0 (the warm-up) and then decay.
///
/// Functions are called at construction with 0 (MultiplicativeLR's are not), then with 1, 2 and so
/// on; they are not part of the state.
/// Errors: c10::ValueError for an empty function, or unless there is one function or one for each
///         parameter group.
/// Mirrors: torch.optim.lr_scheduler, the classes of these names.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "accelerate/optim/schedulers/scheduler.h"

namespace accelerate::optim {

/// A factor as a function of the step.
using LrLambda = std::function<double(int64_t epoch)>;

/// Rates that are a function of the step times others.
template <bool kOfPresentRates>
class LambdaSchedule : public Scheduler {
 public:
  LambdaSchedule(torch::optim::Optimizer& optimizer, std::vector<LrLambda> lr_lambdas);
  LambdaSchedule(torch::optim::Optimizer& optimizer, const LrLambda& lr_lambda);

 private:
  std::vector<double> rates_at(int64_t epoch) final;
  bool begins_from_base() const final { return !kOfPresentRates; }
  void archive(StateArchive& state) final;
  void check() const final;

  std::vector<LrLambda> lr_lambdas_;
};

/// The base rates times the function.
class LambdaLR final : public LambdaSchedule<false> {
 public:
  using LambdaSchedule::LambdaSchedule;
  /// `end`: the step at which the function ends, if it does.
  LambdaLR(torch::optim::Optimizer& optimizer, const LrLambda& lr_lambda,
           std::optional<int64_t> end)
      : LambdaSchedule(optimizer, lr_lambda), end_(end) {}

  std::optional<int64_t> end() const override { return end_; }

 private:
  std::optional<int64_t> end_;
};

/// The present rates times the function.
class MultiplicativeLR final : public LambdaSchedule<true> {
 public:
  using LambdaSchedule::LambdaSchedule;
};

/// The schedules with a warm-up. Each is a LambdaLR; the factors apply to the base rates. Steps are
/// the scheduler's own: where ranks advance a prepared scheduler once per process, count the
/// batches of all ranks (accelerate/docs/schedulers.md).
/// Errors:  c10::ValueError for negative numbers of steps.
/// Mirrors: transformers optimization.py, the functions of these names.
LambdaLR get_constant_schedule(torch::optim::Optimizer& optimizer);

LambdaLR get_constant_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                           int64_t num_warmup_steps);

/// Down to 0 at `num_training_steps`.
LambdaLR get_linear_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                         int64_t num_warmup_steps, int64_t num_training_steps);

/// Along a cosine of `num_cycles` whole cycles; half a cycle ends at 0.
LambdaLR get_cosine_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                         int64_t num_warmup_steps, int64_t num_training_steps,
                                         double num_cycles = 0.5);

/// Down to 0 along half a cosine, `num_cycles` times.
LambdaLR get_cosine_with_hard_restarts_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                            int64_t num_warmup_steps,
                                                            int64_t num_training_steps,
                                                            int64_t num_cycles = 1);

/// Down to the rate `lr_end` at `num_training_steps`. The factor is that of the optimizer's default
/// rate. Errors: c10::ValueError unless that is larger than lr_end.
LambdaLR get_polynomial_decay_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                   int64_t num_warmup_steps,
                                                   int64_t num_training_steps, double lr_end = 1e-7,
                                                   double power = 1.0);

/// As 1 / sqrt(step). `timescale` is how fast: num_warmup_steps, or 10,000 without a warm-up.
LambdaLR get_inverse_sqrt_schedule(torch::optim::Optimizer& optimizer, int64_t num_warmup_steps,
                                   std::optional<int64_t> timescale = std::nullopt);

}  // namespace accelerate::optim
