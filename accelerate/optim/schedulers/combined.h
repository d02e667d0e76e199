/// Schedulers made of schedulers: SequentialLR, ChainedScheduler.
///
///   SequentialLR scheduler(
///       optimizer,
///       {.schedulers = {scheduler_of<LinearLR>({.start_factor = 0.1, .total_iters = 9}),
///                       scheduler_of<CosineAnnealingLR>({.T_max = 90})},
///        .milestones = {9}});
///
/// They make their parts themselves, all with the same base rates: those that the optimizer has.
/// Errors: c10::ValueError for no parts, and for a ReduceLROnPlateau among them, which needs a
///         metric.
/// Mirrors: torch.optim.lr_scheduler, the classes of these names.
/// Differs: PyTorch takes schedulers that are made already.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "accelerate/optim/schedulers/scheduler.h"

namespace accelerate::optim {

/// Makes a scheduler for an optimizer.
using MakeScheduler = std::function<std::unique_ptr<Scheduler>(torch::optim::Optimizer&)>;

/// A part with these options.
template <typename Kind>
MakeScheduler scheduler_of(typename Kind::Options options) {
  return [options = std::move(options)](torch::optim::Optimizer& optimizer) {
    return std::make_unique<Kind>(optimizer, options);
  };
}
/// A part of a kind without options, such as LambdaLR, with its further arguments.
template <typename Kind, typename... Arguments>
MakeScheduler scheduler_with(Arguments... arguments) {
  return [arguments...](torch::optim::Optimizer& optimizer) {
    return std::make_unique<Kind>(optimizer, arguments...);
  };
}

/// Their common base, which owns the parts.
class Combined : public Scheduler {
 public:
  const std::vector<std::unique_ptr<Scheduler>>& schedulers() const { return schedulers_; }

 protected:
  Combined(torch::optim::Optimizer& optimizer, const char* kind,
           const std::vector<MakeScheduler>& makers);

  static void restart(Scheduler& part) { part.start(); }
  static void step_to_epoch_0(Scheduler& part) { part.step_to_epoch_0(); }

  void archive(StateArchive& state) override;

 private:
  std::vector<std::unique_ptr<Scheduler>> schedulers_;
};

struct SequentialLROptions {
  std::vector<MakeScheduler> schedulers = {};
  /// The steps at which the second, third, ... takes over. They begin from their own start.
  std::vector<int64_t> milestones = {};
};

/// One after the other.
/// Errors: c10::ValueError unless there is a milestone between any two parts, in rising order.
class SequentialLR final : public Combined {
 public:
  using Options = SequentialLROptions;
  SequentialLR(torch::optim::Optimizer& optimizer, const Options& options);

  std::optional<int64_t> end() const override;

 private:
  std::vector<double> rates_at(int64_t epoch) override;
  void archive(StateArchive& state) override;
  void check() const override;

  std::vector<int64_t> milestones_;
};

struct ChainedSchedulerOptions {
  std::vector<MakeScheduler> schedulers = {};
};

/// All at every step, each from the rates that the one before it left.
class ChainedScheduler final : public Combined {
 public:
  using Options = ChainedSchedulerOptions;
  ChainedScheduler(torch::optim::Optimizer& optimizer, const Options& options);

  std::optional<int64_t> end() const override;

 private:
  std::vector<double> rates_at(int64_t epoch) override;
};

}  // namespace accelerate::optim
