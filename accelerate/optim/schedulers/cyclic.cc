#include "accelerate/optim/schedulers/cyclic.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <numbers>

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

// Whether the options are of this kind; sets the value of such options, if one is given.
template <typename Kind, typename Value, typename Set>
bool set_if(torch::optim::OptimizerOptions& options, const std::optional<Value>& value, Set&& set) {
  auto* of_kind = dynamic_cast<Kind*>(&options);
  if (of_kind != nullptr && value) set(*of_kind, *value);
  return of_kind != nullptr;
}

// Whether the options have a momentum; sets it, if one is given.
bool set_momentum(torch::optim::OptimizerOptions& options, std::optional<double> momentum) {
  using namespace torch::optim;
  auto plain = [](auto& kind, double value) { kind.momentum(value); };
  auto beta1 = [](auto& adam, double value) { std::get<0>(adam.betas()) = value; };
  auto own = [](HasMomentum& kind, double value) { kind.set_momentum_value(value); };
  return set_if<SGDOptions>(options, momentum, plain) ||
         set_if<AdamWOptions>(options, momentum, beta1) ||
         set_if<AdamOptions>(options, momentum, beta1) ||
         set_if<RMSpropOptions>(options, momentum, plain) ||
         set_if<HasMomentum>(options, momentum, own);
}

// Whether the options have betas; sets them, if some are given.
bool set_betas(torch::optim::OptimizerOptions& options,
               const std::optional<HasBetas::Betas>& betas) {
  using namespace torch::optim;
  auto adam = [](auto& kind, const HasBetas::Betas& value) { kind.betas(value); };
  auto own = [](HasBetas& kind, const HasBetas::Betas& value) { kind.set_betas_value(value); };
  return set_if<AdamWOptions>(options, betas, adam) || set_if<AdamOptions>(options, betas, adam) ||
         set_if<HasBetas>(options, betas, own);
}

}  // namespace

CyclicLR::CyclicLR(torch::optim::Optimizer& optimizer, Options options)
    : Scheduler(optimizer), options_(std::move(options)) {
  const int64_t up = options_.step_size_up;
  const int64_t down = options_.step_size_down.value_or(up);
  TORCH_CHECK_VALUE(up >= 1 && down >= 1,
                    "CyclicLR: step_size_up and step_size_down must be at least 1, got ", up,
                    " and ", down);
  total_size_ = static_cast<double>(up) + static_cast<double>(down);
  step_ratio_ = static_cast<double>(up) / total_size_;
  if (!options_.scale_fn) {
    const bool by_step = options_.mode == CyclicMode::kExpRange;
    options_.scale_mode = by_step ? CyclicScaleMode::kIterations : CyclicScaleMode::kCycle;
  }
  const size_t groups = base_lrs().size();
  max_lrs_ = options_.max_lr.expanded("CyclicLR: max_lr", groups);
  if (options_.cycle_momentum) {
    base_momentums_ = options_.base_momentum.expanded("CyclicLR: base_momentum", groups);
    max_momentums_ = options_.max_momentum.expanded("CyclicLR: max_momentum", groups);
  }
  set_base_lrs(options_.base_lr.expanded("CyclicLR: base_lr", groups));
  start();
}

double CyclicLR::scale(double cycle, int64_t epoch) const {
  const auto step = static_cast<double>(epoch);
  if (options_.scale_fn)
    return options_.scale_fn(options_.scale_mode == CyclicScaleMode::kCycle ? cycle : step);
  switch (options_.mode) {
    case CyclicMode::kTriangular: return 1.0;
    case CyclicMode::kTriangular2: return 1 / std::pow(2.0, cycle - 1);
    case CyclicMode::kExpRange: return std::pow(options_.gamma, step);
  }
  return 1.0;
}

std::vector<double> CyclicLR::rates_at(int64_t epoch) {
  const double cycles = static_cast<double>(epoch) / total_size_;
  const double cycle = std::floor(1 + cycles);
  const double x = 1.0 + cycles - cycle;
  const double height = x <= step_ratio_ ? x / step_ratio_ : (x - 1) / (step_ratio_ - 1);
  const double factor = scale(cycle, epoch);
  if (options_.cycle_momentum) {
    std::vector<double> momenta = max_momentums_;
    for (size_t i = 0; i < momenta.size(); ++i) {
      momenta[i] -= (max_momentums_[i] - base_momentums_[i]) * height * factor;
    }
    set_momenta(optimizer(), momenta);
  }
  std::vector<double> rates = base_lrs();
  for (size_t i = 0; i < rates.size(); ++i) {
    rates[i] += (max_lrs_[i] - rates[i]) * height * factor;
  }
  return rates;
}

void CyclicLR::archive(StateArchive& state) {
  state("total_size", total_size_);
  state("step_ratio", step_ratio_);
  state("mode", options_.mode);
  state("gamma", options_.gamma);
  state("scale_mode", options_.scale_mode);
  state("cycle_momentum", options_.cycle_momentum);
  state("max_lrs", max_lrs_);
  state("base_momentums", base_momentums_);
  state("max_momentums", max_momentums_);
}

void CyclicLR::check() const {
  TORCH_CHECK_VALUE(total_size_ >= 2 && step_ratio_ > 0 && step_ratio_ < 1, "CyclicLR: a cycle of ",
                    total_size_, " steps rises for ", step_ratio_, " of them");
  const size_t momenta = options_.cycle_momentum ? max_lrs_.size() : 0;
  TORCH_CHECK_VALUE(base_lrs().size() == max_lrs_.size() && base_momentums_.size() == momenta &&
                        max_momentums_.size() == momenta,
                    "CyclicLR: rates and momenta are for different numbers of parameter groups");
}

OneCycleLR::OneCycleLR(torch::optim::Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer), total_steps_(total_steps_of(options)), options_(options) {
  const size_t groups = base_lrs().size();
  TORCH_CHECK_VALUE(options.div_factor > 0 && options.final_div_factor > 0,
                    "OneCycleLR: div_factor and final_div_factor must be positive, got ",
                    options.div_factor, " and ", options.final_div_factor);
  rates_.peak = options.max_lr.expanded("OneCycleLR: max_lr", groups);
  rates_.initial = divided(rates_.peak, options.div_factor);
  rates_.final = divided(rates_.initial, options.final_div_factor);
  if (options_.cycle_momentum) {
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
  const double top = options_.pct_start * total - 1;
  const double last = total - 1;
  if (step <= top) return {&Range::initial, &Range::peak, part(0, top)};
  if (!options_.three_phase) return {&Range::peak, &Range::final, part(top, last)};
  const double middle = 2 * options_.pct_start * total - 2;
  if (step <= middle) return {&Range::peak, &Range::initial, part(top, middle)};
  return {&Range::initial, &Range::final, part(middle, last)};
}

std::vector<double> OneCycleLR::values_at(const Place& place, const Range& range) const {
  const std::vector<double>& from = range.*place.from;
  std::vector<double> values = range.*place.to;
  for (size_t i = 0; i < values.size(); ++i) {
    if (options_.anneal_strategy == AnnealStrategy::kCos) {
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
  if (options_.cycle_momentum) set_momenta(optimizer(), values_at(place, momenta_));
  return values_at(place, rates_);
}

void OneCycleLR::archive(StateArchive& state) {
  state("total_steps", total_steps_);
  state("pct_start", options_.pct_start);
  state("_anneal_func_type", options_.anneal_strategy);
  state("three_phase", options_.three_phase);
  state("cycle_momentum", options_.cycle_momentum);
  // PyTorch keeps these in the optimizer's groups.
  state("max_lrs", rates_.peak);
  state("initial_lrs", rates_.initial);
  state("min_lrs", rates_.final);
  state("base_momentums", momenta_.peak);
  state("max_momentums", momenta_.initial);
  if (state.loads()) momenta_.final = momenta_.initial;
}

void OneCycleLR::check() const {
  TORCH_CHECK_VALUE(options_.pct_start >= 0 && options_.pct_start <= 1,
                    "OneCycleLR: pct_start must be between 0 and 1, got ", options_.pct_start);
  TORCH_CHECK_VALUE(total_steps_ >= 1, "OneCycleLR: total_steps must be positive, got ",
                    total_steps_);
  const size_t groups = rates_.peak.size();
  const size_t momenta = options_.cycle_momentum ? groups : 0;
  TORCH_CHECK_VALUE(rates_.initial.size() == groups && rates_.final.size() == groups &&
                        momenta_.initial.size() == momenta && momenta_.peak.size() == momenta,
                    "OneCycleLR: rates and momenta are for different numbers of parameter groups");
}

void set_momenta(torch::optim::Optimizer& optimizer, const std::vector<double>& momenta) {
  auto& groups = optimizer.param_groups();
  const size_t count = std::min(groups.size(), momenta.size());
  for (size_t i = 0; i < count; ++i) {
    TORCH_CHECK_VALUE(set_momentum(groups[i].options(), std::nullopt),
                      "cycle_momentum: the optimizer has neither momentum nor betas; set "
                      "cycle_momentum to false");
  }
  for (size_t i = 0; i < count; ++i) set_momentum(groups[i].options(), momenta[i]);
}

bool has_betas(torch::optim::Optimizer& optimizer) {
  return std::ranges::all_of(optimizer.param_groups(),
                             [](auto& group) { return set_betas(group.options(), std::nullopt); });
}

void set_betas(torch::optim::Optimizer& optimizer, const std::vector<double>& momenta,
               double beta2) {
  auto& groups = optimizer.param_groups();
  const size_t count = std::min(groups.size(), momenta.size());
  for (size_t i = 0; i < count; ++i) {
    set_betas(groups[i].options(), HasBetas::Betas(momenta[i], beta2));
  }
}

}  // namespace accelerate::optim
