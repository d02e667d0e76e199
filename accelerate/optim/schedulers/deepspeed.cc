#include "accelerate/optim/schedulers/deepspeed.h"

#include <algorithm>
#include <cmath>

#include <c10/util/Exception.h>
#include <numbers>

#include "absl/strings/str_cat.h"
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
                  std::initializer_list<const std::vector<double>*> arguments) {
  for (const std::vector<double>* each : arguments) {
    TORCH_CHECK_VALUE(each->size() == groups, kind, ": an argument is for ", each->size(),
                      " parameter groups, not for ", groups);
  }
}

// `part` of the way from the first ones to the second ones.
std::vector<double> between(const std::vector<double>& from, const std::vector<double>& to,
                            double part) {
  std::vector<double> values = from;
  for (size_t i = 0; i < values.size(); ++i) values[i] += (to[i] - from[i]) * part;
  return values;
}

}  // namespace

std::vector<double> BatchSchedule::rates_at(int64_t epoch) {
  if (epoch == 0 && first_iteration_ >= 0) return current_times(1.0);
  return rates_after(first_iteration_ + epoch);
}

void BatchSchedule::archive(StateArchive& state) {
  int64_t iteration = last_batch_iteration();
  int64_t epoch = last_epoch();
  state("last_batch_iteration", iteration);
  state("last_epoch", epoch);
  if (state.loads()) first_iteration_ = iteration - epoch;
}

void BatchSchedule::check() const {
  TORCH_CHECK_VALUE(first_iteration_ >= -1, "last_batch_iteration must be at least -1, got ",
                    first_iteration_);
}

// ---- WarmupLR, WarmupDecayLR

WarmupSchedule::WarmupSchedule(const char* kind, torch::optim::Optimizer& optimizer,
                               int64_t last_batch_iteration, const PerGroup& min_lr,
                               const std::optional<PerGroup>& max_lr, int64_t warmup_num_steps,
                               WarmupType type)
    : BatchSchedule(optimizer, last_batch_iteration),
      kind_(kind),
      min_lrs_(min_lr.expanded(absl::StrCat(kind, ": warmup_min_lr").c_str(), base_lrs().size())),
      max_lrs_(max_lr ? max_lr->expanded(absl::StrCat(kind, ": warmup_max_lr").c_str(),
                                         base_lrs().size())
                      : base_lrs()),
      warmup_num_steps_(warmup_num_steps),
      warmup_type_(type) {}

int64_t WarmupSchedule::warmup_num_steps() const { return warmup_steps(warmup_num_steps_); }

std::vector<double> WarmupSchedule::rates_after(int64_t iteration) {
  if (iteration < 0) return min_lrs_;
  const auto part = warmup_part(warmup_type_, warmup_num_steps_, iteration);
  return between(min_lrs_, max_lrs_, part ? *part : height_after(iteration));
}

void WarmupSchedule::archive(StateArchive& state) {
  state("warmup_min_lr", min_lrs_);
  state("warmup_max_lr", max_lrs_);
  state("warmup_num_steps", warmup_num_steps_);
  state("warmup_type", warmup_type_);
  BatchSchedule::archive(state);
}

void WarmupSchedule::check() const {
  BatchSchedule::check();
  check_warmup(kind_, warmup_num_steps_);
  check_groups(kind_, base_lrs().size(), {&min_lrs_, &max_lrs_});
}

WarmupLR::WarmupLR(torch::optim::Optimizer& optimizer, const Options& options)
    : WarmupSchedule("WarmupLR", optimizer, options.last_batch_iteration, options.warmup_min_lr,
                     options.warmup_max_lr, options.warmup_num_steps, options.warmup_type) {
  start();
}

WarmupDecayLR::WarmupDecayLR(torch::optim::Optimizer& optimizer, const Options& options)
    : WarmupSchedule("WarmupDecayLR", optimizer, options.last_batch_iteration,
                     options.warmup_min_lr, options.warmup_max_lr, options.warmup_num_steps,
                     options.warmup_type),
      total_num_steps_(options.total_num_steps) {
  start();
}

double WarmupDecayLR::height_after(int64_t iteration) const {
  const int64_t falls = total_num_steps_ - warmup_num_steps();
  const auto left = static_cast<double>(total_num_steps_ - iteration);
  return std::max(0.0, left / static_cast<double>(std::max<int64_t>(1, falls)));
}

void WarmupDecayLR::archive(StateArchive& state) {
  state("total_num_steps", total_num_steps_);
  WarmupSchedule::archive(state);
}

void WarmupDecayLR::check() const {
  check_total("WarmupDecayLR", total_num_steps_);
  WarmupSchedule::check();
}

// ---- WarmupCosineLR

WarmupCosineLR::WarmupCosineLR(torch::optim::Optimizer& optimizer, const Options& options)
    : BatchSchedule(optimizer, options.last_batch_iteration), options_(options) {
  start();
}

std::vector<double> WarmupCosineLR::rates_after(int64_t iteration) {
  if (iteration < 0) return base_times(0.0);
  const auto part = warmup_part(options_.warmup_type, options_.warmup_num_steps, iteration);
  if (part) {
    return base_times(options_.warmup_min_ratio + *part * (1.0 - options_.warmup_min_ratio));
  }
  const int64_t warmup = warmup_steps(options_.warmup_num_steps);
  const auto falls = static_cast<double>(std::max<int64_t>(1, options_.total_num_steps - warmup));
  const double progress = std::min(1.0, static_cast<double>(iteration - warmup + 1) / falls);
  const double height = (1 + std::cos(std::numbers::pi * progress)) / 2;
  return base_times(
      std::max(0.0, options_.cos_min_ratio + (1.0 - options_.cos_min_ratio) * height));
}

void WarmupCosineLR::archive(StateArchive& state) {
  state("total_num_steps", options_.total_num_steps);
  state("warmup_min_ratio", options_.warmup_min_ratio);
  state("warmup_num_steps", options_.warmup_num_steps);
  state("cos_min_ratio", options_.cos_min_ratio);
  state("warmup_type", options_.warmup_type);
  BatchSchedule::archive(state);
}

void WarmupCosineLR::check() const {
  BatchSchedule::check();
  check_total("WarmupCosineLR", options_.total_num_steps);
  check_warmup("WarmupCosineLR", options_.warmup_num_steps);
}

// ---- OneCycle

OneCycle::OneCycle(torch::optim::Optimizer& optimizer, const Options& options)
    : BatchSchedule(optimizer, options.last_batch_iteration),
      options_(options),
      min_lrs_(options.cycle_min_lr.expanded("OneCycle: cycle_min_lr", base_lrs().size())),
      max_lrs_(options.cycle_max_lr.expanded("OneCycle: cycle_max_lr", base_lrs().size())) {
  options_.cycle_second_step_size =
      options.cycle_second_step_size.value_or(options.cycle_first_step_size);
  options_.cycle_second_stair_count =
      options.cycle_second_stair_count.value_or(options.cycle_first_stair_count);
  options_.cycle_momentum = options.cycle_momentum && has_betas(optimizer);
  if (options_.cycle_momentum) {
    min_moms_ = options.cycle_min_mom.expanded("OneCycle: cycle_min_mom", base_lrs().size());
    max_moms_ = options.cycle_max_mom.expanded("OneCycle: cycle_max_mom", base_lrs().size());
  }
  start();
}

int64_t OneCycle::total_size() const {
  return options_.cycle_first_step_size + *options_.cycle_second_step_size;
}

std::optional<int64_t> OneCycle::end() const {
  const bool decays = options_.decay_step_size > 0 && options_.decay_lr_rate != 0;
  return decays ? std::nullopt : step_of(total_size() - 1);
}

double OneCycle::height(int64_t iteration) const {
  const auto first = static_cast<double>(options_.cycle_first_step_size);
  const auto total = static_cast<double>(total_size());
  const auto step = static_cast<double>(iteration + 1);
  const double x = 1.0 + step / total - std::floor(1 + step / total);
  const bool rises = x <= first / total;
  const int64_t stairs =
      rises ? options_.cycle_first_stair_count : *options_.cycle_second_stair_count;
  if (stairs == 0) return rises ? x / (first / total) : (x - 1) / (first / total - 1);
  // From whole steps: a height that is rounded down would miss its stair.
  const double place = std::fmod(step, total);
  const auto count = static_cast<double>(stairs);
  const double stair =
      place <= first ? place * count / first : (total - place) * count / (total - first);
  return std::floor(stair) / count;
}

std::vector<double> OneCycle::rates_after(int64_t iteration) {
  const int64_t beyond = iteration - total_size() + 1;
  const bool is_over = beyond > 0;
  const double part = is_over ? 0.0 : height(iteration);
  const double decays =
      is_over && options_.decay_step_size > 0
          ? static_cast<double>(beyond) / static_cast<double>(options_.decay_step_size)
          : 0.0;
  if (options_.cycle_momentum) {
    std::vector<double> momenta = iteration < 0 ? min_moms_ : between(max_moms_, min_moms_, part);
    for (double& momentum : momenta) {
      momentum *= 1 + options_.decay_mom_rate * decays;
      TORCH_CHECK_VALUE(momentum < 1, "OneCycle: iteration ", iteration,
                        " would have a momentum of ", momentum,
                        ", where it must be less than 1; lower decay_mom_rate");
    }
    set_betas(optimizer(), momenta, kBeta2);
  }
  std::vector<double> rates = between(min_lrs_, max_lrs_, part);
  for (double& rate : rates) rate /= 1 + options_.decay_lr_rate * decays;
  return rates;
}

void OneCycle::archive(StateArchive& state) {
  state("cycle_min_lr", min_lrs_);
  state("cycle_max_lr", max_lrs_);
  state("decay_lr_rate", options_.decay_lr_rate);
  state("cycle_first_step_size", options_.cycle_first_step_size);
  state("cycle_second_step_size", *options_.cycle_second_step_size);
  state("cycle_first_stair_count", options_.cycle_first_stair_count);
  state("cycle_second_stair_count", *options_.cycle_second_stair_count);
  state("decay_step_size", options_.decay_step_size);
  state("cycle_momentum", options_.cycle_momentum);
  state("cycle_min_mom", min_moms_);
  state("cycle_max_mom", max_moms_);
  state("decay_mom_rate", options_.decay_mom_rate);
  BatchSchedule::archive(state);
}

void OneCycle::check() const {
  BatchSchedule::check();
  TORCH_CHECK_VALUE(options_.cycle_first_step_size >= 1 && *options_.cycle_second_step_size >= 0,
                    "OneCycle: cycle_first_step_size must be at least 1 and cycle_second_step_size "
                    "at least 0, got ",
                    options_.cycle_first_step_size, " and ", *options_.cycle_second_step_size);
  TORCH_CHECK_VALUE(
      options_.cycle_first_stair_count >= 0 && *options_.cycle_second_stair_count >= 0,
      "OneCycle: cycle_first_stair_count and cycle_second_stair_count must not be negative, got ",
      options_.cycle_first_stair_count, " and ", *options_.cycle_second_stair_count);
  TORCH_CHECK_VALUE(options_.decay_step_size >= 0,
                    "OneCycle: decay_step_size must not be negative, got ",
                    options_.decay_step_size);
  TORCH_CHECK_VALUE(options_.decay_lr_rate >= 0 && options_.decay_mom_rate >= 0,
                    "OneCycle: decay_lr_rate and decay_mom_rate must not be negative, got ",
                    options_.decay_lr_rate, " and ", options_.decay_mom_rate);
  const size_t groups = base_lrs().size();
  check_groups("OneCycle", groups, {&min_lrs_, &max_lrs_});
  if (!options_.cycle_momentum) return;
  check_groups("OneCycle", groups, {&min_moms_, &max_moms_});
  for (const std::vector<double>* momenta : {&min_moms_, &max_moms_}) {
    for (const double momentum : *momenta) {
      TORCH_CHECK_VALUE(momentum >= 0 && momentum < 1,
                        "OneCycle: cycle_min_mom and cycle_max_mom must be at least 0 and less "
                        "than 1, got ",
                        momentum);
    }
  }
}

// ---- LRRangeTest

LRRangeTest::LRRangeTest(torch::optim::Optimizer& optimizer, const Options& options)
    : BatchSchedule(optimizer, options.last_batch_iteration),
      options_(options),
      min_lrs_(options.lr_range_test_min_lr.expanded("LRRangeTest: lr_range_test_min_lr",
                                                     base_lrs().size())) {
  start();
}

std::vector<double> LRRangeTest::rates_after(int64_t iteration) {
  double intervals =
      static_cast<double>(iteration + 1) / static_cast<double>(options_.lr_range_test_step_size);
  if (options_.lr_range_test_staircase) intervals = std::floor(intervals);
  std::vector<double> rates = min_lrs_;
  for (double& rate : rates) rate *= 1 + options_.lr_range_test_step_rate * intervals;
  return rates;
}

void LRRangeTest::archive(StateArchive& state) {
  state("lr_range_test_min_lr", min_lrs_);
  state("lr_range_test_step_size", options_.lr_range_test_step_size);
  state("lr_range_test_step_rate", options_.lr_range_test_step_rate);
  state("lr_range_test_staircase", options_.lr_range_test_staircase);
  BatchSchedule::archive(state);
}

void LRRangeTest::check() const {
  BatchSchedule::check();
  TORCH_CHECK_VALUE(options_.lr_range_test_step_size >= 1,
                    "LRRangeTest: lr_range_test_step_size must be at least 1, got ",
                    options_.lr_range_test_step_size);
  check_groups("LRRangeTest", base_lrs().size(), {&min_lrs_});
}

}  // namespace accelerate::optim
