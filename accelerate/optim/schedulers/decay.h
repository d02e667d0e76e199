/// Schedules with a closed form: StepLR, MultiStepLR and ExponentialLR fall without an end;
/// ConstantLR, LinearLR and PolynomialLR go from one factor to another within `total_iters` steps;
/// CosineAnnealingLR and CosineAnnealingWarmRestarts go along half a cosine.
///
/// Errors:  c10::ValueError for a step size, period or multiplier below 1, factors outside their
///          range, and a negative total_iters.
/// Source:  Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR
/// 2017. Mirrors: torch.optim.lr_scheduler, the classes of these names. Differs: a ConstantLR with
/// factor 0 ends at the base rates, where PyTorch divides by zero.
#pragma once

#include <cstdint>
#include <optional>
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

struct ConstantLROptions {
  double factor = 1.0 / 3;  ///< within [0, 1]
  int64_t total_iters = 5;
};

/// Times `factor` until step `total_iters`, which takes it back.
class ConstantLR final : public Scheduler {
 public:
  using Options = ConstantLROptions;
  explicit ConstantLR(torch::optim::Optimizer& optimizer, const Options& options = {});

 private:
  std::vector<double> rates_at(int64_t epoch) override;
  void archive(StateArchive& state) override;
  void check() const override;

  Options options_;
};

struct LinearLROptions {
  double start_factor = 1.0 / 3;  ///< within (0, 1]
  double end_factor = 1.0;        ///< within [0, 1]
  int64_t total_iters = 5;
};

/// The factor goes in equal steps from `start_factor` to `end_factor`, and stays.
class LinearLR final : public Scheduler {
 public:
  using Options = LinearLROptions;
  explicit LinearLR(torch::optim::Optimizer& optimizer, const Options& options = {});

  std::optional<int64_t> end() const override;

 private:
  std::vector<double> rates_at(int64_t epoch) override;
  void archive(StateArchive& state) override;
  void check() const override;

  Options options_;
};

struct PolynomialLROptions {
  int64_t total_iters = 5;
  double power = 1.0;
};

/// The factor is (1 - epoch / total_iters) ^ power, and stays 0.
class PolynomialLR final : public Scheduler {
 public:
  using Options = PolynomialLROptions;
  explicit PolynomialLR(torch::optim::Optimizer& optimizer, const Options& options = {});

  std::optional<int64_t> end() const override { return options_.total_iters; }

 private:
  std::vector<double> rates_at(int64_t epoch) override;
  void archive(StateArchive& state) override;
  void check() const override;

  Options options_;
};

struct CosineAnnealingLROptions {
  int64_t T_max = 0;  ///< required: steps down to eta_min
  double eta_min = 0;
};

/// Down to `eta_min` within T_max steps, and up again within as many.
class CosineAnnealingLR final : public Scheduler {
 public:
  using Options = CosineAnnealingLROptions;
  CosineAnnealingLR(torch::optim::Optimizer& optimizer, const Options& options);

  std::optional<int64_t> end() const override { return options_.T_max; }

 private:
  std::vector<double> rates_at(int64_t epoch) override;
  void archive(StateArchive& state) override;
  void check() const override;

  Options options_;
};

struct CosineAnnealingWarmRestartsOptions {
  int64_t T_0 = 0;     ///< required: steps to the first restart
  int64_t T_mult = 1;  ///< each period is that many times longer than the one before
  double eta_min = 0;
};

/// Down to `eta_min`, then anew from the base rates.
class CosineAnnealingWarmRestarts final : public Scheduler {
 public:
  using Options = CosineAnnealingWarmRestartsOptions;
  CosineAnnealingWarmRestarts(torch::optim::Optimizer& optimizer, const Options& options);

 private:
  std::vector<double> rates_at(int64_t epoch) override;
  void archive(StateArchive& state) override;
  void check() const override;

  Options options_;
};

}  // namespace accelerate::optim
