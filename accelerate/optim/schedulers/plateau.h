/// ReduceLROnPlateau: a smaller rate when a metric stops improving.
///
///   ReduceLROnPlateau scheduler(optimizer, {.patience = 2});
///   ...
///   scheduler.step(validation_loss);   // after each evaluation
///
/// Mirrors: torch.optim.lr_scheduler, ReduceLROnPlateau.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "accelerate/base/enum_text.h"
#include "accelerate/optim/schedulers/scheduler.h"

namespace accelerate::optim {

enum class PlateauMode { kMin, kMax };
enum class ThresholdMode { kRel, kAbs };

struct ReduceLROnPlateauOptions {
  /// Whether a small or a large metric is good.
  PlateauMode mode = PlateauMode::kMin;
  double factor = 0.1;
  /// The rate is reduced after more than this many steps without improvement.
  int64_t patience = 10;
  /// What counts as an improvement: a part of the best metric, or a difference from it.
  double threshold = 1e-4;
  ThresholdMode threshold_mode = ThresholdMode::kRel;
  /// Steps after a reduction that are not counted.
  int64_t cooldown = 0;
  PerGroup min_lr = 0.0;
  /// A rate that would change by no more than this stays.
  double eps = 1e-8;
};

/// Errors: c10::ValueError for a factor of 1 or more, a negative patience or cooldown, and for a
///         step without a metric.
class ReduceLROnPlateau final : public Scheduler {
 public:
  using Options = ReduceLROnPlateauOptions;
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer, const Options& options = {});

  /// NaN is never an improvement.
  void step(double metric);

  double best() const { return best_; }
  int64_t num_bad_epochs() const { return num_bad_epochs_; }

 private:
  bool is_better(double metric) const;

  std::vector<double> rates_at(int64_t epoch) override;
  void archive(StateArchive& state) override;
  void check() const override;

  Options options_;
  std::vector<double> min_lrs_;
  double best_;
  int64_t num_bad_epochs_ = 0;
  int64_t cooldown_counter_ = 0;
  std::optional<double> metric_;  // of the step being made
};

}  // namespace accelerate::optim

namespace accelerate {

ACCELERATE_ENUM_TEXTS(optim::PlateauMode, "PlateauMode", "min", "max")

ACCELERATE_ENUM_TEXTS(optim::ThresholdMode, "ThresholdMode", "rel", "abs")

}  // namespace accelerate
