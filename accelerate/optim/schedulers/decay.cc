#include "accelerate/optim/schedulers/decay.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <c10/util/Exception.h>
#include <numbers>

#include "accelerate/optim/schedulers/state_archive.h"

namespace accelerate::optim {
namespace {

using Rates = std::vector<double>;

// Where a schedule stands: the step it makes, the base rates, and the rates before the step.
struct Now {
  int64_t epoch;
  const Rates& base;
  Rates rates;
};

void check_total_iters(const char* kind, int64_t total_iters) {
  TORCH_CHECK_VALUE(total_iters >= 0, kind, ": total_iters must not be negative, got ",
                    total_iters);
}

// 1 + cos, `part` of the way from its maximum to its minimum.
double raised_cosine(int64_t part, int64_t whole) {
  return 1 + std::cos(std::numbers::pi * static_cast<double>(part) / static_cast<double>(whole));
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

// ---- What the kinds make of their options.

void check_options(const StepLROptions& options) {
  TORCH_CHECK_VALUE(options.step_size >= 1, "StepLR: step_size must be at least 1, got ",
                    options.step_size);
}

Rates rates_of(const StepLROptions& options, const Now& now) {
  const bool falls = now.epoch != 0 && now.epoch % options.step_size == 0;
  return times(now.rates, falls ? options.gamma : 1.0);
}

void check_options(const MultiStepLROptions& /*options*/) {}

Rates rates_of(const MultiStepLROptions& options, const Now& now) {
  const auto [first, last] =
      std::equal_range(options.milestones.begin(), options.milestones.end(), now.epoch);
  return times(now.rates, std::pow(options.gamma, last - first));
}

void check_options(const ExponentialLROptions& options) {
  TORCH_CHECK_VALUE(options.gamma > 0, "ExponentialLR: gamma must be positive, got ",
                    options.gamma);
}

Rates rates_of(const ExponentialLROptions& options, const Now& now) {
  return times(now.rates, now.epoch == 0 ? 1.0 : options.gamma);
}

void check_options(const ConstantLROptions& options) {
  TORCH_CHECK_VALUE(options.factor >= 0 && options.factor <= 1,
                    "ConstantLR: factor must be between 0 and 1, got ", options.factor);
  check_total_iters("ConstantLR", options.total_iters);
}

Rates rates_of(const ConstantLROptions& options, const Now& now) {
  if (now.epoch == 0) return times(now.rates, options.factor);
  if (now.epoch != options.total_iters) return now.rates;
  return options.factor == 0 ? now.base : times(now.rates, 1.0 / options.factor);
}

void check_options(const LinearLROptions& options) {
  TORCH_CHECK_VALUE(options.start_factor > 0 && options.start_factor <= 1,
                    "LinearLR: start_factor must be greater than 0 and at most 1, got ",
                    options.start_factor);
  TORCH_CHECK_VALUE(options.end_factor >= 0 && options.end_factor <= 1,
                    "LinearLR: end_factor must be between 0 and 1, got ", options.end_factor);
  check_total_iters("LinearLR", options.total_iters);
}

Rates rates_of(const LinearLROptions& options, const Now& now) {
  const auto [start, end, total_iters] = options;
  if (now.epoch == 0) return times(now.rates, start);
  if (now.epoch > total_iters) return now.rates;
  const double rise = end - start;
  const double before =
      static_cast<double>(total_iters) * start + static_cast<double>(now.epoch - 1) * rise;
  return times(now.rates, 1.0 + rise / before);
}

void check_options(const PolynomialLROptions& options) {
  check_total_iters("PolynomialLR", options.total_iters);
}

Rates rates_of(const PolynomialLROptions& options, const Now& now) {
  if (now.epoch == 0 || now.epoch > options.total_iters) return now.rates;
  const auto total = static_cast<double>(options.total_iters);
  const double left = 1.0 - static_cast<double>(now.epoch) / total;
  const double left_before = 1.0 - static_cast<double>(now.epoch - 1) / total;
  return times(now.rates, std::pow(left / left_before, options.power));
}

void check_options(const CosineAnnealingLROptions& options) {
  TORCH_CHECK_VALUE(options.T_max >= 1, "CosineAnnealingLR: T_max must be at least 1, got ",
                    options.T_max);
}

Rates rates_of(const CosineAnnealingLROptions& options, const Now& now) {
  const auto [T_max, eta_min] = options;
  auto [epoch, base, rates] = now;
  if (epoch == 0) return rates;
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

void check_options(const CosineAnnealingWarmRestartsOptions& options) {
  TORCH_CHECK_VALUE(options.T_0 >= 1, "CosineAnnealingWarmRestarts: T_0 must be at least 1, got ",
                    options.T_0);
  TORCH_CHECK_VALUE(options.T_mult >= 1,
                    "CosineAnnealingWarmRestarts: T_mult must be at least 1, got ", options.T_mult);
}

Rates rates_of(const CosineAnnealingWarmRestartsOptions& options, const Now& now) {
  const Place place = place_of(now.epoch, options);
  const double raised = raised_cosine(place.since_restart, place.period);
  Rates rates = now.base;
  for (double& rate : rates) rate = options.eta_min + (rate - options.eta_min) * raised / 2;
  return rates;
}

MultiStepLROptions in_order(MultiStepLROptions options) {
  std::sort(options.milestones.begin(), options.milestones.end());
  return options;
}

}  // namespace

template <typename Options>
void ClosedForm<Options>::archive(StateArchive& state) {
  visit_fields(options_, [&state](const char* name, auto& field) { state(name, field); });
}

template <typename Options>
std::vector<double> ClosedForm<Options>::rates_at(int64_t epoch) {
  return rates_of(options_, {.epoch = epoch, .base = base_lrs(), .rates = get_current_lrs()});
}

template <typename Options>
void ClosedForm<Options>::check() const {
  check_options(options_);
}

template class ClosedForm<StepLROptions>;
template class ClosedForm<MultiStepLROptions>;
template class ClosedForm<ExponentialLROptions>;
template class ClosedForm<ConstantLROptions>;
template class ClosedForm<LinearLROptions>;
template class ClosedForm<PolynomialLROptions>;
template class ClosedForm<CosineAnnealingLROptions>;
template class ClosedForm<CosineAnnealingWarmRestartsOptions>;

MultiStepLR::MultiStepLR(torch::optim::Optimizer& optimizer, Options options)
    : ClosedForm(optimizer, in_order(std::move(options))) {}

void MultiStepLR::archive(StateArchive& state) {
  ClosedForm::archive(state);
  options_ = in_order(std::move(options_));
}

std::optional<int64_t> LinearLR::end() const {
  if (options_.end_factor >= options_.start_factor) return std::nullopt;  // a warm-up
  return options_.total_iters;
}

void CosineAnnealingWarmRestarts::archive(StateArchive& state) {
  ClosedForm::archive(state);
  if (state.loads()) return;
  const Place place = place_of(last_epoch(), options_);
  state.save("T_i", place.period);
  state.save("T_cur", place.since_restart);
}

}  // namespace accelerate::optim
