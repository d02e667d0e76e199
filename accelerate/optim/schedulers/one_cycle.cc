#include "accelerate/optim/schedulers/one_cycle.h"

#include <cmath>
#include <numbers>

#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

#include "accelerate/optim/schedulers/momentum.h"
#include "accelerate/optim/schedulers/state_archive.h"

namespace accelerate::optim {
namespace {

int64_t total_steps_of(const OneCycleLROptions& options) {
  if (options.total_steps) {
    TORCH_CHECK_VALUE(*options.total_steps >= 1, "OneCycleLR: total_steps must be positive, got ",
                      *options.total_steps);
    return *options.total_steps;
  }
  TORCH_CHECK_VALUE(options.epochs && options.steps_per_epoch,
                    "OneCycleLR: give total_steps, or both epochs and steps_per_epoch");
  TORCH_CHECK_VALUE(*options.epochs >= 1 && *options.steps_per_epoch >= 1,
                    "OneCycleLR: epochs and steps_per_epoch must be positive, got ",
                    *options.epochs, " and ", *options.steps_per_epoch);
  return *options.epochs * *options.steps_per_epoch;
}

std::vector<double> divided(std::vector<double> values, double divisor) {
  for (double& value : values) value /= divisor;
  return values;
}

}  // namespace

OneCycleLR::OneCycleLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer),
      total_steps_(total_steps_of(options)),
      pct_start_(options.pct_start),
      anneal_strategy_(options.anneal_strategy),
      cycle_momentum_(options.cycle_momentum),
      three_phase_(options.three_phase) {
  const size_t groups = base_lrs().size();
  TORCH_CHECK_VALUE(options.div_factor > 0 && options.final_div_factor > 0,
                    "OneCycleLR: div_factor and final_div_factor must be positive, got ",
                    options.div_factor, " and ", options.final_div_factor);
  rates_.peak = options.max_lr.expanded("OneCycleLR: max_lr", groups);
  rates_.initial = divided(rates_.peak, options.div_factor);
  rates_.final = divided(rates_.initial, options.final_div_factor);
  if (cycle_momentum_) {
    momenta_.peak = options.base_momentum.expanded("OneCycleLR: base_momentum", groups);
    momenta_.initial = options.max_momentum.expanded("OneCycleLR: max_momentum", groups);
    momenta_.final = momenta_.initial;
  }
  set_base_lrs(rates_.initial);
  start();
}

OneCycleLR::Place OneCycleLR::place_at(int64_t epoch) const {
  const auto step = static_cast<double>(epoch);
  const auto total = static_cast<double>(total_steps_);
  auto part = [step](double begin, double end) {
    return end == begin ? 1.0 : (step - begin) / (end - begin);
  };
  const double top = pct_start_ * total - 1;
  const double last = total - 1;
  if (step <= top) return {&Range::initial, &Range::peak, part(0, top)};
  if (!three_phase_) return {&Range::peak, &Range::final, part(top, last)};
  const double middle = 2 * pct_start_ * total - 2;
  if (step <= middle) return {&Range::peak, &Range::initial, part(top, middle)};
  return {&Range::initial, &Range::final, part(middle, last)};
}

std::vector<double> OneCycleLR::values_at(const Place& place, const Range& range) const {
  const std::vector<double>& from = range.*place.from;
  std::vector<double> values = range.*place.to;
  for (size_t i = 0; i < values.size(); ++i) {
    if (anneal_strategy_ == AnnealStrategy::kCos) {
      values[i] += (from[i] - values[i]) / 2.0 * (1 + std::cos(std::numbers::pi * place.part));
    } else {
      values[i] = (values[i] - from[i]) * place.part + from[i];
    }
  }
  return values;
}

std::vector<double> OneCycleLR::rates_at(int64_t epoch) {
  TORCH_CHECK_VALUE(epoch <= total_steps_, "OneCycleLR: tried to step ", epoch,
                    " times, but total_steps is ", total_steps_);
  const Place place = place_at(epoch);
  if (cycle_momentum_) set_momenta(optimizer(), values_at(place, momenta_));
  return values_at(place, rates_);
}

void OneCycleLR::archive(StateArchive& state) {
  state("total_steps", total_steps_);
  state("pct_start", pct_start_);
  state("_anneal_func_type", anneal_strategy_);
  state("three_phase", three_phase_);
  state("cycle_momentum", cycle_momentum_);
  // PyTorch keeps these in the optimizer's groups.
  state("max_lrs", rates_.peak);
  state("initial_lrs", rates_.initial);
  state("min_lrs", rates_.final);
  state("base_momentums", momenta_.peak);
  state("max_momentums", momenta_.initial);
  if (state.loads()) momenta_.final = momenta_.initial;
}

void OneCycleLR::check() const {
  TORCH_CHECK_VALUE(pct_start_ >= 0 && pct_start_ <= 1,
                    "OneCycleLR: pct_start must be between 0 and 1, got ", pct_start_);
  TORCH_CHECK_VALUE(total_steps_ >= 1, "OneCycleLR: total_steps must be positive, got ",
                    total_steps_);
  const size_t groups = rates_.peak.size();
  const size_t momenta = cycle_momentum_ ? groups : 0;
  TORCH_CHECK_VALUE(rates_.initial.size() == groups && rates_.final.size() == groups &&
                        momenta_.initial.size() == momenta && momenta_.peak.size() == momenta,
                    "OneCycleLR: rates and momenta are for different numbers of parameter groups");
}

}  // namespace accelerate::optim
