#include "accelerate/optim/schedulers/deepspeed.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <c10/util/Exception.h>
#include <numbers>

#include "accelerate/optim/schedulers/cyclic.h"
#include "accelerate/optim/schedulers/state_archive.h"

namespace accelerate::optim {
namespace {

// What DeepSpeed sets the second of the betas to.
constexpr double kBeta2 = 0.99;

int64_t warmup_steps(int64_t warmup_num_steps) { return std::max<int64_t>(2, warmup_num_steps); }

// How far a warm-up has come after an iteration, from 0 to 1; absent: it is over.
std::optional<double> warmup_part(WarmupType type, int64_t warmup_num_steps, int64_t iteration) {
  const int64_t steps = warmup_steps(warmup_num_steps);
  if (iteration >= steps) return std::nullopt;
  if (type == WarmupType::kLinear) {
    return static_cast<double>(iteration) / static_cast<double>(steps);
  }
  const double inverse = 1.0 / std::log(static_cast<double>(steps));
  return inverse * std::log(static_cast<double>(iteration + 1));
}

void check_warmup(const char* kind, int64_t warmup_num_steps) {
  TORCH_CHECK_VALUE(warmup_num_steps >= 0, kind, ": warmup_num_steps must not be negative, got ",
                    warmup_num_steps);
}

void check_total(const char* kind, int64_t total_num_steps) {
  TORCH_CHECK_VALUE(total_num_steps >= 1, kind, ": total_num_steps must be at least 1, got ",
                    total_num_steps);
}

// Arguments that a state may have for another number of groups.
void check_groups(const char* kind, size_t groups,
                  std::initializer_list<const PerGroup*> arguments) {
  for (const PerGroup* each : arguments) {
    TORCH_CHECK_VALUE(each->values().size() == groups, kind, ": an argument is for ",
                      each->values().size(), " parameter groups, not for ", groups);
  }
}

// `part` of the way from the first ones to the second ones.
std::vector<double> between(const std::vector<double>& from, const std::vector<double>& to,
                            double part) {
  std::vector<double> values = from;
  for (size_t i = 0; i < values.size(); ++i) values[i] += (to[i] - from[i]) * part;
  return values;
}

// The arguments by group.
void expand(const char* name, PerGroup& argument, size_t groups) {
  argument = argument.expanded(name, groups);
}

// Where a schedule stands: the iteration it makes, and the base rates.
struct BatchNow {
  int64_t iteration;
  const std::vector<double>& base;
  torch::optim::Optimizer& optimizer;
};

// ---- What the kinds make of their options: options with all that is absent in them, checks, and
// rates after an iteration, or before the first one: -1.

// The rates after an iteration; behind the warm-up, `height` of the way to the largest.
template <typename Options>
std::vector<double> warmed_up_rates(const Options& options, const PerGroup& max_lr,
                                    int64_t iteration, double height) {
  const std::vector<double>& least = options.warmup_min_lr.values();
  if (iteration < 0) return least;
  const auto part = warmup_part(options.warmup_type, options.warmup_num_steps, iteration);
  return between(least, max_lr.values(), part.value_or(height));
}

WarmupLROptions resolved(WarmupLROptions options, const BatchNow& now) {
  expand("WarmupLR: warmup_min_lr", options.warmup_min_lr, now.base.size());
  if (!options.warmup_max_lr) options.warmup_max_lr = now.base;
  expand("WarmupLR: warmup_max_lr", *options.warmup_max_lr, now.base.size());
  return options;
}

void check_schedule(const WarmupLROptions& options, size_t groups) {
  check_warmup("WarmupLR", options.warmup_num_steps);
  check_groups("WarmupLR", groups, {&options.warmup_min_lr, &*options.warmup_max_lr});
}

std::vector<double> rates_after(const WarmupLROptions& options, const BatchNow& now) {
  return warmed_up_rates(options, *options.warmup_max_lr, now.iteration, 1);
}

WarmupDecayLROptions resolved(WarmupDecayLROptions options, const BatchNow& now) {
  expand("WarmupDecayLR: warmup_min_lr", options.warmup_min_lr, now.base.size());
  expand("WarmupDecayLR: warmup_max_lr", options.warmup_max_lr, now.base.size());
  return options;
}

void check_schedule(const WarmupDecayLROptions& options, size_t groups) {
  check_total("WarmupDecayLR", options.total_num_steps);
  check_warmup("WarmupDecayLR", options.warmup_num_steps);
  check_groups("WarmupDecayLR", groups, {&options.warmup_min_lr, &options.warmup_max_lr});
}

std::vector<double> rates_after(const WarmupDecayLROptions& options, const BatchNow& now) {
  const int64_t falls = options.total_num_steps - warmup_steps(options.warmup_num_steps);
  const auto left = static_cast<double>(options.total_num_steps - now.iteration);
  const double height = std::max(0.0, left / static_cast<double>(std::max<int64_t>(1, falls)));
  return warmed_up_rates(options, options.warmup_max_lr, now.iteration, height);
}

WarmupCosineLROptions resolved(const WarmupCosineLROptions& options, const BatchNow& /*now*/) {
  return options;
}

void check_schedule(const WarmupCosineLROptions& options, size_t /*groups*/) {
  check_total("WarmupCosineLR", options.total_num_steps);
  check_warmup("WarmupCosineLR", options.warmup_num_steps);
}

std::vector<double> rates_after(const WarmupCosineLROptions& options, const BatchNow& now) {
  if (now.iteration < 0) return times(now.base, 0.0);
  const auto part = warmup_part(options.warmup_type, options.warmup_num_steps, now.iteration);
  if (part) {
    return times(now.base, options.warmup_min_ratio + *part * (1.0 - options.warmup_min_ratio));
  }
  const int64_t warmup = warmup_steps(options.warmup_num_steps);
  const auto falls = static_cast<double>(std::max<int64_t>(1, options.total_num_steps - warmup));
  const double progress = std::min(1.0, static_cast<double>(now.iteration - warmup + 1) / falls);
  const double height = (1 + std::cos(std::numbers::pi * progress)) / 2;
  return times(now.base,
               std::max(0.0, options.cos_min_ratio + (1.0 - options.cos_min_ratio) * height));
}

OneCycleOptions resolved(OneCycleOptions options, const BatchNow& now) {
  expand("OneCycle: cycle_min_lr", options.cycle_min_lr, now.base.size());
  expand("OneCycle: cycle_max_lr", options.cycle_max_lr, now.base.size());
  if (!options.cycle_second_step_size) {
    options.cycle_second_step_size = options.cycle_first_step_size;
  }
  if (!options.cycle_second_stair_count) {
    options.cycle_second_stair_count = options.cycle_first_stair_count;
  }
  options.cycle_momentum = options.cycle_momentum && has_betas(now.optimizer);
  if (options.cycle_momentum) {
    expand("OneCycle: cycle_min_mom", options.cycle_min_mom, now.base.size());
    expand("OneCycle: cycle_max_mom", options.cycle_max_mom, now.base.size());
  } else {
    options.cycle_min_mom = options.cycle_max_mom = std::vector<double>();
  }
  return options;
}

void check_schedule(const OneCycleOptions& options, size_t groups) {
  TORCH_CHECK_VALUE(options.cycle_first_step_size >= 1 && *options.cycle_second_step_size >= 0,
                    "OneCycle: cycle_first_step_size must be at least 1 and cycle_second_step_size "
                    "at least 0, got ",
                    options.cycle_first_step_size, " and ", *options.cycle_second_step_size);
  TORCH_CHECK_VALUE(
      options.cycle_first_stair_count >= 0 && *options.cycle_second_stair_count >= 0,
      "OneCycle: cycle_first_stair_count and cycle_second_stair_count must not be negative, got ",
      options.cycle_first_stair_count, " and ", *options.cycle_second_stair_count);
  TORCH_CHECK_VALUE(options.decay_step_size >= 0,
                    "OneCycle: decay_step_size must not be negative, got ",
                    options.decay_step_size);
  TORCH_CHECK_VALUE(options.decay_lr_rate >= 0 && options.decay_mom_rate >= 0,
                    "OneCycle: decay_lr_rate and decay_mom_rate must not be negative, got ",
                    options.decay_lr_rate, " and ", options.decay_mom_rate);
  check_groups("OneCycle", groups, {&options.cycle_min_lr, &options.cycle_max_lr});
  if (!options.cycle_momentum) return;
  check_groups("OneCycle", groups, {&options.cycle_min_mom, &options.cycle_max_mom});
  for (const PerGroup* momenta : {&options.cycle_min_mom, &options.cycle_max_mom}) {
    for (const double momentum : momenta->values()) {
      TORCH_CHECK_VALUE(momentum >= 0 && momentum < 1,
                        "OneCycle: cycle_min_mom and cycle_max_mom must be at least 0 and less "
                        "than 1, got ",
                        momentum);
    }
  }
}

int64_t total_size(const OneCycleOptions& options) {
  return options.cycle_first_step_size + *options.cycle_second_step_size;
}

// From 0, where the rate is smallest, to 1.
double height_of(const OneCycleOptions& options, int64_t iteration) {
  const auto first = static_cast<double>(options.cycle_first_step_size);
  const auto total = static_cast<double>(total_size(options));
  const auto step = static_cast<double>(iteration + 1);
  const double x = 1.0 + step / total - std::floor(1 + step / total);
  const bool rises = x <= first / total;
  const int64_t stairs =
      rises ? options.cycle_first_stair_count : *options.cycle_second_stair_count;
  if (stairs == 0) return rises ? x / (first / total) : (x - 1) / (first / total - 1);
  // From whole steps: a height that is rounded down would miss its stair.
  const double place = std::fmod(step, total);
  const auto count = static_cast<double>(stairs);
  const double stair =
      place <= first ? place * count / first : (total - place) * count / (total - first);
  return std::floor(stair) / count;
}

std::vector<double> rates_after(const OneCycleOptions& options, const BatchNow& now) {
  const int64_t iteration = now.iteration;
  const int64_t beyond = iteration - total_size(options) + 1;
  const bool is_over = beyond > 0;
  const double part = is_over ? 0.0 : height_of(options, iteration);
  const double decays =
      is_over && options.decay_step_size > 0
          ? static_cast<double>(beyond) / static_cast<double>(options.decay_step_size)
          : 0.0;
  if (options.cycle_momentum) {
    const std::vector<double>& least = options.cycle_min_mom.values();
    std::vector<double> momenta =
        iteration < 0 ? least : between(options.cycle_max_mom.values(), least, part);
    for (double& momentum : momenta) {
      momentum *= 1 + options.decay_mom_rate * decays;
      TORCH_CHECK_VALUE(momentum < 1, "OneCycle: iteration ", iteration,
                        " would have a momentum of ", momentum,
                        ", where it must be less than 1; lower decay_mom_rate");
    }
    optim::set_betas(now.optimizer, momenta, kBeta2);
  }
  std::vector<double> rates =
      between(options.cycle_min_lr.values(), options.cycle_max_lr.values(), part);
  for (double& rate : rates) rate /= 1 + options.decay_lr_rate * decays;
  return rates;
}

LRRangeTestOptions resolved(LRRangeTestOptions options, const BatchNow& now) {
  expand("LRRangeTest: lr_range_test_min_lr", options.lr_range_test_min_lr, now.base.size());
  return options;
}

void check_schedule(const LRRangeTestOptions& options, size_t groups) {
  TORCH_CHECK_VALUE(options.lr_range_test_step_size >= 1,
                    "LRRangeTest: lr_range_test_step_size must be at least 1, got ",
                    options.lr_range_test_step_size);
  check_groups("LRRangeTest", groups, {&options.lr_range_test_min_lr});
}

std::vector<double> rates_after(const LRRangeTestOptions& options, const BatchNow& now) {
  double intervals =
      static_cast<double>(now.iteration + 1) / static_cast<double>(options.lr_range_test_step_size);
  if (options.lr_range_test_staircase) intervals = std::floor(intervals);
  return times(options.lr_range_test_min_lr.values(),
               1 + options.lr_range_test_step_rate * intervals);
}

// ---- Saved arguments: those that were absent, or one for all groups, as they are used.

template <typename T>
void archive_argument(StateArchive& state, const char* name, T& field) {
  state(name, field);
}

void archive_argument(StateArchive& state, const char* name, PerGroup& field) {
  std::vector<double> values = field.values();
  state(name, values);
  field = std::move(values);
}

template <typename T>
void archive_argument(StateArchive& state, const char* name, std::optional<T>& field) {
  archive_argument(state, name, *field);
}

}  // namespace

template <typename KindOptions>
BatchSchedule<KindOptions>::BatchSchedule(torch::optim::Optimizer& optimizer,
                                          const Options& options)
    : Scheduler(optimizer),
      options_(resolved(
          options,
          {.iteration = options.last_batch_iteration, .base = base_lrs(), .optimizer = optimizer})),
      first_iteration_(options.last_batch_iteration) {
  start();
}

template <typename KindOptions>
std::vector<double> BatchSchedule<KindOptions>::rates_at(int64_t epoch) {
  if (epoch == 0 && first_iteration_ >= 0) return get_current_lrs();
  return rates_after(
      options_,
      {.iteration = first_iteration_ + epoch, .base = base_lrs(), .optimizer = optimizer()});
}

template <typename KindOptions>
void BatchSchedule<KindOptions>::archive(StateArchive& state) {
  visit_fields(options_,
               [&state](const char* name, auto& field) { archive_argument(state, name, field); });
  int64_t iteration = last_batch_iteration();
  int64_t epoch = last_epoch();
  state("last_batch_iteration", iteration);
  state("last_epoch", epoch);
  if (state.loads()) first_iteration_ = iteration - epoch;
}

template <typename KindOptions>
void BatchSchedule<KindOptions>::check() const {
  TORCH_CHECK_VALUE(first_iteration_ >= -1, "last_batch_iteration must be at least -1, got ",
                    first_iteration_);
  check_schedule(options_, base_lrs().size());
}

template class BatchSchedule<WarmupLROptions>;
template class BatchSchedule<WarmupDecayLROptions>;
template class BatchSchedule<WarmupCosineLROptions>;
template class BatchSchedule<OneCycleOptions>;
template class BatchSchedule<LRRangeTestOptions>;

std::optional<int64_t> OneCycle::end() const {
  const bool decays = options_.decay_step_size > 0 && options_.decay_lr_rate != 0;
  return decays ? std::nullopt : step_of(total_size(options_) - 1);
}

}  // namespace accelerate::optim
