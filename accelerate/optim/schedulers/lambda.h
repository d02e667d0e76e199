/// Schedules given by a function of the step: LambdaLR, MultiplicativeLR.
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

/// The base rates times the function.
class LambdaLR final : public Scheduler {
 public:
  LambdaLR(torch::optim::Optimizer& optimizer, LrLambda lr_lambda);
  LambdaLR(torch::optim::Optimizer& optimizer, std::vector<LrLambda> lr_lambdas);
  /// Of a function that has run its course at step `end`.
  LambdaLR(torch::optim::Optimizer& optimizer, LrLambda lr_lambda, int64_t end);

  std::optional<int64_t> end() const override { return end_; }

 private:
  std::vector<double> rates_at(int64_t epoch) override;
  void archive(StateArchive& state) override;
  void check() const override;

  std::vector<LrLambda> lr_lambdas_;
  std::optional<int64_t> end_;
};

/// The present rates times the function.
class MultiplicativeLR final : public Scheduler {
 public:
  MultiplicativeLR(torch::optim::Optimizer& optimizer, LrLambda lr_lambda);
  MultiplicativeLR(torch::optim::Optimizer& optimizer, std::vector<LrLambda> lr_lambdas);

 private:
  std::vector<double> rates_at(int64_t epoch) override;
  bool begins_from_base() const override { return false; }
  void archive(StateArchive& state) override;
  void check() const override;

  std::vector<LrLambda> lr_lambdas_;
};

}  // namespace accelerate::optim
