#include "accelerate/optim/schedulers/cosine.h"

#include <cmath>
#include <numbers>

#include <c10/util/Exception.h>

#include "accelerate/optim/schedulers/state_archive.h"

namespace accelerate::optim {
namespace {

// 1 + cos, `part` of the way from its maximum to its minimum.
double raised_cosine(int64_t part, int64_t whole) {
  return 1 + std::cos(std::numbers::pi * static_cast<double>(part) / static_cast<double>(whole));
}

double annealed(double base, double eta_min, double raised) {
  return eta_min + (base - eta_min) * raised / 2;
}

// Where an epoch lies in its period.
struct Place {
  int64_t since_restart;
  int64_t period;
};

Place place_of(int64_t epoch, const CosineAnnealingWarmRestartsOptions& options) {
  if (options.T_mult == 1) return {epoch % options.T_0, options.T_0};
  Place place{epoch, options.T_0};
  while (place.since_restart >= place.period) {
    place.since_restart -= place.period;
    place.period *= options.T_mult;
  }
  return place;
}

}  // namespace

CosineAnnealingLR::CosineAnnealingLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer), options_(options) {
  start();
}

std::vector<double> CosineAnnealingLR::rates_at(int64_t epoch) {
  const auto [T_max, eta_min] = options_;
  std::vector<double> rates = current_times(1.0);
  if (epoch == 0) return rates;
  const std::vector<double>& base = base_lrs();
  // At the bottom nothing can be scaled, so the way up begins with an addition.
  const bool leaves_bottom = (epoch - 1 - T_max) % (2 * T_max) == 0;
  const double rise = (2 - raised_cosine(1, T_max)) / 2;
  const double ratio = raised_cosine(epoch, T_max) / raised_cosine(epoch - 1, T_max);
  for (size_t i = 0; i < base.size(); ++i) {
    rates[i] = leaves_bottom ? rates[i] + (base[i] - eta_min) * rise
                             : ratio * (rates[i] - eta_min) + eta_min;
  }
  return rates;
}

void CosineAnnealingLR::archive(StateArchive& state) {
  state("T_max", options_.T_max);
  state("eta_min", options_.eta_min);
}

void CosineAnnealingLR::check() const {
  TORCH_CHECK_VALUE(options_.T_max >= 1, "CosineAnnealingLR: T_max must be at least 1, got ",
                    options_.T_max);
}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(torch::optim::Optimizer& optimizer,
                                                         const Options& options)
    : Scheduler(optimizer), options_(options) {
  start();
}

std::vector<double> CosineAnnealingWarmRestarts::rates_at(int64_t epoch) {
  const Place place = place_of(epoch, options_);
  const double raised = raised_cosine(place.since_restart, place.period);
  std::vector<double> rates = base_lrs();
  for (double& rate : rates) rate = annealed(rate, options_.eta_min, raised);
  return rates;
}

void CosineAnnealingWarmRestarts::archive(StateArchive& state) {
  state("T_0", options_.T_0);
  state("T_mult", options_.T_mult);
  state("eta_min", options_.eta_min);
  if (state.loads()) return;
  const Place place = place_of(last_epoch(), options_);
  state.note("T_i", place.period);
  state.note("T_cur", place.since_restart);
}

void CosineAnnealingWarmRestarts::check() const {
  TORCH_CHECK_VALUE(options_.T_0 >= 1, "CosineAnnealingWarmRestarts: T_0 must be at least 1, got ",
                    options_.T_0);
  TORCH_CHECK_VALUE(options_.T_mult >= 1,
                    "CosineAnnealingWarmRestarts: T_mult must be at least 1, got ",
                    options_.T_mult);
}

}  // namespace accelerate::optim
