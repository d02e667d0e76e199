#include "accelerate/optim/schedulers/plateau.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <c10/util/Exception.h>

#include "accelerate/optim/schedulers/state_archive.h"

namespace accelerate::optim {
namespace {

double worst(PlateauMode mode) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return mode == PlateauMode::kMin ? kInfinity : -kInfinity;
}

}  // namespace

ReduceLROnPlateau::ReduceLROnPlateau(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer),
      options_(options),
      min_lrs_(options.min_lr.expanded("ReduceLROnPlateau: min_lr", base_lrs().size())),
      best_(worst(options.mode)) {
  start();
}

void ReduceLROnPlateau::step(double metric) {
  metric_ = metric;
  Scheduler::step();
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const bool min = options_.mode == PlateauMode::kMin;
  const double threshold = min ? -options_.threshold : options_.threshold;
  const double bar = options_.threshold_mode == ThresholdMode::kRel ? best_ * (1.0 + threshold)
                                                                    : best_ + threshold;
  return min ? metric < bar : metric > bar;
}

std::vector<double> ReduceLROnPlateau::rates_at(int64_t epoch) {
  std::vector<double> rates = get_current_lrs();
  if (epoch == 0) return rates;
  const std::optional<double> metric = std::exchange(metric_, std::nullopt);
  TORCH_CHECK_VALUE(metric.has_value(),
                    "ReduceLROnPlateau: step() needs the metric that it goes by");
  if (is_better(*metric)) {
    best_ = *metric;
    num_bad_epochs_ = 0;
  } else {
    ++num_bad_epochs_;
  }
  if (cooldown_counter_ > 0) {
    --cooldown_counter_;
    num_bad_epochs_ = 0;
  }
  if (num_bad_epochs_ <= options_.patience) return rates;
  for (size_t i = 0; i < min_lrs_.size(); ++i) {
    const double reduced = std::max(rates[i] * options_.factor, min_lrs_[i]);
    if (rates[i] - reduced > options_.eps) rates[i] = reduced;
  }
  cooldown_counter_ = options_.cooldown;
  num_bad_epochs_ = 0;
  return rates;
}

void ReduceLROnPlateau::archive(StateArchive& state) {
  state("factor", options_.factor);
  state("min_lrs", min_lrs_);
  state("patience", options_.patience);
  state("cooldown", options_.cooldown);
  state("cooldown_counter", cooldown_counter_);
  state("mode", options_.mode);
  state("threshold", options_.threshold);
  state("threshold_mode", options_.threshold_mode);
  // Infinite before the first step, which JSON text cannot say.
  if (state.loads() && state.at("best").is_null()) {
    best_ = worst(options_.mode);
  } else {
    state("best", best_);
  }
  state("num_bad_epochs", num_bad_epochs_);
  state("eps", options_.eps);
}

void ReduceLROnPlateau::check() const {
  TORCH_CHECK_VALUE(options_.factor < 1, "ReduceLROnPlateau: factor must be less than 1, got ",
                    options_.factor);
  TORCH_CHECK_VALUE(options_.patience >= 0 && options_.cooldown >= 0,
                    "ReduceLROnPlateau: patience and cooldown must not be negative, got ",
                    options_.patience, " and ", options_.cooldown);
}

}  // namespace accelerate::optim
