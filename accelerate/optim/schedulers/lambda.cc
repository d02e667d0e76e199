#include "accelerate/optim/schedulers/lambda.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>
#include <nlohmann/json.hpp>
#include <numbers>

#include "accelerate/optim/schedulers/state_archive.h"

namespace accelerate::optim {
namespace {

constexpr int64_t kDefaultTimescale = 10'000;

double ratio(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
}

void check_steps(int64_t num_warmup_steps, int64_t num_training_steps) {
  TORCH_CHECK_VALUE(num_warmup_steps >= 0 && num_training_steps >= 0,
                    "a schedule with warm-up: numbers of steps must not be negative, got ",
                    num_warmup_steps, " of warm-up and ", num_training_steps, " in all");
}

// Rises for the warm-up; afterwards `decay` of the part of the remaining steps that is through,
// which grows beyond 1.
template <typename Decay>
LrLambda warmed_up(int64_t warm_up, int64_t training, Decay decay) {
  check_steps(warm_up, training);
  return [=](int64_t step) {
    if (step < warm_up) return ratio(step, warm_up);
    return decay(ratio(step - warm_up, training - warm_up));
  };
}

}  // namespace

template <bool kOfPresentRates>
LambdaSchedule<kOfPresentRates>::LambdaSchedule(torch::optim::Optimizer& optimizer,
                                                std::vector<LrLambda> lr_lambdas)
    : Scheduler(optimizer), lr_lambdas_(std::move(lr_lambdas)) {
  start();
}

template <bool kOfPresentRates>
LambdaSchedule<kOfPresentRates>::LambdaSchedule(torch::optim::Optimizer& optimizer,
                                                const LrLambda& lr_lambda)
    : LambdaSchedule(optimizer, std::vector<LrLambda>(optimizer.param_groups().size(), lr_lambda)) {
}

template <bool kOfPresentRates>
std::vector<double> LambdaSchedule<kOfPresentRates>::rates_at(int64_t epoch) {
  std::vector<double> rates = kOfPresentRates ? get_current_lrs() : base_lrs();
  if (kOfPresentRates && epoch == 0) return rates;
  for (size_t i = 0; i < lr_lambdas_.size(); ++i) rates[i] *= lr_lambdas_[i](epoch);
  return rates;
}

// PyTorch's keeps the attributes of function objects there, and null for plain functions.
template <bool kOfPresentRates>
void LambdaSchedule<kOfPresentRates>::archive(StateArchive& state) {
  state.save("lr_lambdas", std::vector<nlohmann::ordered_json>(lr_lambdas_.size()));
}

template <bool kOfPresentRates>
void LambdaSchedule<kOfPresentRates>::check() const {
  const char* const kind = kOfPresentRates ? "MultiplicativeLR" : "LambdaLR";
  const size_t groups = base_lrs().size();
  TORCH_CHECK_VALUE(lr_lambdas_.size() == groups, kind, ": expected one function or ", groups,
                    ", one for each parameter group, got ", lr_lambdas_.size());
  TORCH_CHECK_VALUE(
      std::ranges::all_of(lr_lambdas_, [](const LrLambda& each) { return each != nullptr; }), kind,
      ": a function is empty");
}

template class LambdaSchedule<false>;
template class LambdaSchedule<true>;

LambdaLR get_constant_schedule(torch::optim::Optimizer& optimizer) {
  return {optimizer, [](int64_t /*step*/) { return 1.0; }};
}

LambdaLR get_constant_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                           int64_t num_warmup_steps) {
  return {optimizer, warmed_up(num_warmup_steps, 0, [](double /*progress*/) { return 1.0; })};
}

LambdaLR get_linear_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                         int64_t num_warmup_steps, int64_t num_training_steps) {
  check_steps(num_warmup_steps, num_training_steps);
  auto factor = [=](int64_t step) {
    if (step < num_warmup_steps) return ratio(step, num_warmup_steps);
    return std::max(0.0, ratio(num_training_steps - step, num_training_steps - num_warmup_steps));
  };
  return {optimizer, factor, num_training_steps};
}

LambdaLR get_cosine_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                         int64_t num_warmup_steps, int64_t num_training_steps,
                                         double num_cycles) {
  auto decay = [num_cycles](double progress) {
    return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * num_cycles * 2.0 * progress)));
  };
  return {optimizer, warmed_up(num_warmup_steps, num_training_steps, decay), num_training_steps};
}

LambdaLR get_cosine_with_hard_restarts_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                            int64_t num_warmup_steps,
                                                            int64_t num_training_steps,
                                                            int64_t num_cycles) {
  const auto cycles = static_cast<double>(num_cycles);
  auto decay = [cycles](double progress) {
    if (progress >= 1.0) return 0.0;
    const double in_cycle = std::fmod(cycles * progress, 1.0);
    return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * in_cycle)));
  };
  return {optimizer, warmed_up(num_warmup_steps, num_training_steps, decay), num_training_steps};
}

LambdaLR get_polynomial_decay_schedule_with_warmup(torch::optim::Optimizer& optimizer,
                                                   int64_t num_warmup_steps,
                                                   int64_t num_training_steps, double lr_end,
                                                   double power) {
  const double initial = optimizer.defaults().get_lr();
  TORCH_CHECK_VALUE(initial > lr_end, "get_polynomial_decay_schedule_with_warmup: lr_end (", lr_end,
                    ") must be smaller than the optimizer's rate (", initial, ")");
  auto decay = [=](double progress) {
    if (progress >= 1.0) return lr_end / initial;
    return ((initial - lr_end) * std::pow(1.0 - progress, power) + lr_end) / initial;
  };
  return {optimizer, warmed_up(num_warmup_steps, num_training_steps, decay), num_training_steps};
}

LambdaLR get_inverse_sqrt_schedule(torch::optim::Optimizer& optimizer, int64_t num_warmup_steps,
                                   std::optional<int64_t> timescale) {
  check_steps(num_warmup_steps, 0);
  const int64_t scale =
      timescale.value_or(num_warmup_steps == 0 ? kDefaultTimescale : num_warmup_steps);
  TORCH_CHECK_VALUE(scale >= 1, "get_inverse_sqrt_schedule: timescale must be positive, got ",
                    scale);
  return {optimizer, [num_warmup_steps, scale](int64_t step) {
            if (step < num_warmup_steps) return ratio(step, num_warmup_steps);
            const auto moved = static_cast<double>(step + scale - num_warmup_steps);
            return 1.0 / std::sqrt(moved / static_cast<double>(scale));
          }};
}

}  // namespace accelerate::optim
