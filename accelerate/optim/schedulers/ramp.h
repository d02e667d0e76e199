/// Schedules that go from one factor to another within `total_iters` steps: ConstantLR, LinearLR,
/// PolynomialLR.
///
/// Errors: c10::ValueError for factors outside of their range or a negative total_iters.
/// Mirrors: torch.optim.lr_scheduler, the classes of these names.
/// Differs: a ConstantLR with factor 0 ends at the base rates, where PyTorch divides by zero.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "accelerate/optim/schedulers/scheduler.h"

namespace accelerate::optim {

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

}  // namespace accelerate::optim
