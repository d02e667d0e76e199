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
#include <utility>
#include <vector>

#include "accelerate/base/fields.h"
#include "accelerate/optim/schedulers/scheduler.h"

namespace accelerate::optim {

/// A schedule whose rates, and whose saved arguments, follow from its options alone. What a kind
/// makes of them is in decay.cc.
template <typename KindOptions>
class ClosedForm : public Scheduler {
 public:
  using Options = KindOptions;
  ClosedForm(torch::optim::Optimizer& optimizer, Options options)
      : Scheduler(optimizer), options_(std::move(options)) {
    start();
  }

 protected:
  void archive(StateArchive& state) override;

  Options options_;

 private:
  std::vector<double> rates_at(int64_t epoch) final;
  void check() const final;
};

struct StepLROptions {
  int64_t step_size = 0;  ///< required
  double gamma = 0.1;
};
ACCELERATE_FIELDS(StepLROptions, step_size, gamma)

/// Times gamma every `step_size` steps.
class StepLR final : public ClosedForm<StepLROptions> {
 public:
  using ClosedForm::ClosedForm;
};

struct MultiStepLROptions {
  /// In any order; one that comes twice counts twice.
  std::vector<int64_t> milestones = {};
  double gamma = 0.1;
};
ACCELERATE_FIELDS(MultiStepLROptions, milestones, gamma)

/// Times gamma at each milestone.
class MultiStepLR final : public ClosedForm<MultiStepLROptions> {
 public:
  MultiStepLR(torch::optim::Optimizer& optimizer, Options options);

 private:
  void archive(StateArchive& state) override;
};

struct ExponentialLROptions {
  double gamma = 0;  ///< required
};
ACCELERATE_FIELDS(ExponentialLROptions, gamma)

/// Times gamma at every step.
class ExponentialLR final : public ClosedForm<ExponentialLROptions> {
 public:
  using ClosedForm::ClosedForm;
};

struct ConstantLROptions {
  double factor = 1.0 / 3;  ///< within [0, 1]
  int64_t total_iters = 5;
};
ACCELERATE_FIELDS(ConstantLROptions, factor, total_iters)

/// Times `factor` until step `total_iters`, which takes it back.
class ConstantLR final : public ClosedForm<ConstantLROptions> {
 public:
  explicit ConstantLR(torch::optim::Optimizer& optimizer, const Options& options = {})
      : ClosedForm(optimizer, options) {}
};

struct LinearLROptions {
  double start_factor = 1.0 / 3;  ///< within (0, 1]
  double end_factor = 1.0;        ///< within [0, 1]
  int64_t total_iters = 5;
};
ACCELERATE_FIELDS(LinearLROptions, start_factor, end_factor, total_iters)

/// The factor goes in equal steps from `start_factor` to `end_factor`, and stays.
class LinearLR final : public ClosedForm<LinearLROptions> {
 public:
  explicit LinearLR(torch::optim::Optimizer& optimizer, const Options& options = {})
      : ClosedForm(optimizer, options) {}

  std::optional<int64_t> end() const override;
};

struct PolynomialLROptions {
  int64_t total_iters = 5;
  double power = 1.0;
};
ACCELERATE_FIELDS(PolynomialLROptions, total_iters, power)

/// The factor is (1 - epoch / total_iters) ^ power, and stays 0.
class PolynomialLR final : public ClosedForm<PolynomialLROptions> {
 public:
  explicit PolynomialLR(torch::optim::Optimizer& optimizer, const Options& options = {})
      : ClosedForm(optimizer, options) {}

  std::optional<int64_t> end() const override { return options_.total_iters; }
};

struct CosineAnnealingLROptions {
  int64_t T_max = 0;  ///< required: steps down to eta_min
  double eta_min = 0;
};
ACCELERATE_FIELDS(CosineAnnealingLROptions, T_max, eta_min)

/// Down to `eta_min` within T_max steps, and up again within as many.
class CosineAnnealingLR final : public ClosedForm<CosineAnnealingLROptions> {
 public:
  using ClosedForm::ClosedForm;

  std::optional<int64_t> end() const override { return options_.T_max; }
};

struct CosineAnnealingWarmRestartsOptions {
  int64_t T_0 = 0;     ///< required: steps to the first restart
  int64_t T_mult = 1;  ///< each period is that many times longer than the one before
  double eta_min = 0;
};
ACCELERATE_FIELDS(CosineAnnealingWarmRestartsOptions, T_0, T_mult, eta_min)

/// Down to `eta_min`, then anew from the base rates.
class CosineAnnealingWarmRestarts final : public ClosedForm<CosineAnnealingWarmRestartsOptions> {
 public:
  using ClosedForm::ClosedForm;

 private:
  void archive(StateArchive& state) override;
};

}  // namespace accelerate::optim
