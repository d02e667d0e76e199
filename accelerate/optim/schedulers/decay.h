/// Schedules that fall in steps or exponentially, without an end: StepLR, MultiStepLR,
/// ExponentialLR.
///
/// Errors: c10::ValueError for a step_size below 1.
/// Mirrors: torch.optim.lr_scheduler, the classes of these names.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/optim/schedulers/scheduler.h"

namespace accelerate::optim {

struct StepLROptions {
  int64_t step_size = 0;  ///< required
  double gamma = 0.1;
};

/// Times gamma every `step_size` steps.
class StepLR final : public Scheduler {
 public:
  using Options = StepLROptions;
  StepLR(torch::optim::Optimizer& optimizer, const Options& options);

 private:
  std::vector<double> rates_at(int64_t epoch) override;
  void archive(StateArchive& state) override;
  void check() const override;

  Options options_;
};

struct MultiStepLROptions {
  /// In any order; one that comes twice counts twice.
  std::vector<int64_t> milestones = {};
  double gamma = 0.1;
};

/// Times gamma at each milestone.
class MultiStepLR final : public Scheduler {
 public:
  using Options = MultiStepLROptions;
  MultiStepLR(torch::optim::Optimizer& optimizer, Options options);

 private:
  std::vector<double> rates_at(int64_t epoch) override;
  void archive(StateArchive& state) override;

  Options options_;  // milestones in order
};

struct ExponentialLROptions {
  double gamma = 0;  ///< required
};

/// Times gamma at every step.
class ExponentialLR final : public Scheduler {
 public:
  using Options = ExponentialLROptions;
  ExponentialLR(torch::optim::Optimizer& optimizer, const Options& options);

 private:
  std::vector<double> rates_at(int64_t epoch) override;
  void archive(StateArchive& state) override;
  void check() const override;

  Options options_;
};

}  // namespace accelerate::optim
