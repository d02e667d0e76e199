/// Schedules along half a cosine: CosineAnnealingLR, CosineAnnealingWarmRestarts.
///
/// Source: Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR
///         2017.
/// Errors: c10::ValueError for a period or multiplier below 1.
/// Mirrors: torch.optim.lr_scheduler, the classes of these names.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "accelerate/optim/schedulers/scheduler.h"

namespace accelerate::optim {

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
