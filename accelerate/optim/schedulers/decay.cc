#include "accelerate/optim/schedulers/decay.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <c10/util/Exception.h>
#include <numbers>

#include "accelerate/optim/schedulers/state_archive.h"

namespace accelerate::optim {
namespace {

void check_total_iters(const char* kind, int64_t total_iters) {
  TORCH_CHECK_VALUE(total_iters >= 0, kind, ": total_iters must not be negative, got ",
                    total_iters);
}

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

StepLR::StepLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer), options_(options) {
  start();
}

std::vector<double> StepLR::rates_at(int64_t epoch) {
  return current_times(epoch != 0 && epoch % options_.step_size == 0 ? options_.gamma : 1.0);
}

void StepLR::archive(StateArchive& state) {
  state("step_size", options_.step_size);
  state("gamma", options_.gamma);
}

void StepLR::check() const {
  TORCH_CHECK_VALUE(options_.step_size >= 1, "StepLR: step_size must be at least 1, got ",
                    options_.step_size);
}

MultiStepLR::MultiStepLR(torch::optim::Optimizer& optimizer, Options options)
    : Scheduler(optimizer), options_(std::move(options)) {
  std::sort(options_.milestones.begin(), options_.milestones.end());
  start();
}

std::vector<double> MultiStepLR::rates_at(int64_t epoch) {
  const auto [first, last] =
      std::equal_range(options_.milestones.begin(), options_.milestones.end(), epoch);
  return current_times(std::pow(options_.gamma, last - first));
}

void MultiStepLR::archive(StateArchive& state) {
  state("milestones", options_.milestones);
  state("gamma", options_.gamma);
  if (state.loads()) std::sort(options_.milestones.begin(), options_.milestones.end());
}

ExponentialLR::ExponentialLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer), options_(options) {
  start();
}

std::vector<double> ExponentialLR::rates_at(int64_t epoch) {
  return current_times(epoch == 0 ? 1.0 : options_.gamma);
}

void ExponentialLR::archive(StateArchive& state) { state("gamma", options_.gamma); }

void ExponentialLR::check() const {
  TORCH_CHECK_VALUE(options_.gamma > 0, "ExponentialLR: gamma must be positive, got ",
                    options_.gamma);
}

ConstantLR::ConstantLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer), options_(options) {
  start();
}

std::vector<double> ConstantLR::rates_at(int64_t epoch) {
  if (epoch == 0) return current_times(options_.factor);
  if (epoch != options_.total_iters) return current_times(1.0);
  return options_.factor == 0 ? base_lrs() : current_times(1.0 / options_.factor);
}

void ConstantLR::archive(StateArchive& state) {
  state("factor", options_.factor);
  state("total_iters", options_.total_iters);
}

void ConstantLR::check() const {
  TORCH_CHECK_VALUE(options_.factor >= 0 && options_.factor <= 1,
                    "ConstantLR: factor must be between 0 and 1, got ", options_.factor);
  check_total_iters("ConstantLR", options_.total_iters);
}

LinearLR::LinearLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer), options_(options) {
  start();
}

std::optional<int64_t> LinearLR::end() const {
  if (options_.end_factor >= options_.start_factor) return std::nullopt;  // a warm-up
  return options_.total_iters;
}

std::vector<double> LinearLR::rates_at(int64_t epoch) {
  const auto [start, end, total_iters] = options_;
  if (epoch == 0) return current_times(start);
  if (epoch > total_iters) return current_times(1.0);
  const double rise = end - start;
  const double before =
      static_cast<double>(total_iters) * start + static_cast<double>(epoch - 1) * rise;
  return current_times(1.0 + rise / before);
}

void LinearLR::archive(StateArchive& state) {
  state("start_factor", options_.start_factor);
  state("end_factor", options_.end_factor);
  state("total_iters", options_.total_iters);
}

void LinearLR::check() const {
  TORCH_CHECK_VALUE(options_.start_factor > 0 && options_.start_factor <= 1,
                    "LinearLR: start_factor must be greater than 0 and at most 1, got ",
                    options_.start_factor);
  TORCH_CHECK_VALUE(options_.end_factor >= 0 && options_.end_factor <= 1,
                    "LinearLR: end_factor must be between 0 and 1, got ", options_.end_factor);
  check_total_iters("LinearLR", options_.total_iters);
}

PolynomialLR::PolynomialLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer), options_(options) {
  start();
}

std::vector<double> PolynomialLR::rates_at(int64_t epoch) {
  if (epoch == 0 || epoch > options_.total_iters) return current_times(1.0);
  const auto total = static_cast<double>(options_.total_iters);
  const double left = 1.0 - static_cast<double>(epoch) / total;
  const double left_before = 1.0 - static_cast<double>(epoch - 1) / total;
  return current_times(std::pow(left / left_before, options_.power));
}

void PolynomialLR::archive(StateArchive& state) {
  state("total_iters", options_.total_iters);
  state("power", options_.power);
}

void PolynomialLR::check() const { check_total_iters("PolynomialLR", options_.total_iters); }

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
