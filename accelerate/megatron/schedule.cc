#include "accelerate/megatron/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <string>
#include <type_traits>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include "accelerate/base/json_text.h"
#include "accelerate/values/texts.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
std::optional<T> given(const Json& args, const char* name) {
  const auto found = args.find(name);
  if (found == args.end() || found->is_null()) return std::nullopt;
  const bool fits = std::is_same_v<T, int64_t>  ? found->is_number_integer()
                    : std::is_same_v<T, double> ? found->is_number()
                                                : found->is_string();
  TORCH_CHECK_VALUE(fits, "the argument \"", name, "\" is ", json_text(*found),
                    ", which is of another type");
  return found->get<T>();
}

template <typename T>
T needed(const Json& args, const char* name) {
  const std::optional<T> value = given<T>(args, name);
  TORCH_CHECK_VALUE(value, "the schedule needs the argument \"", name, "\"");
  return *value;
}

MegatronDecay style(const Json& args, const char* name, const char* otherwise) {
  const std::string text = given<std::string>(args, name).value_or(otherwise);
  TORCH_CHECK_VALUE(contains<MegatronDecay>(text), name, " is \"", text,
                    "\", which is none of constant, linear, cosine and inverse-square-root");
  return from_string<MegatronDecay>(text);
}

// Lengths in one of two units.
struct Unit {
  const char* train;
  const char* decay;
  const char* warmup;
};
constexpr Unit kIterations = {"train_iters", "lr_decay_iters", "lr_warmup_iters"};
constexpr Unit kSamples = {"train_samples", "lr_decay_samples", "lr_warmup_samples"};

void set_lengths(MegatronSchedule& schedule, const Json& args) {
  const bool by_iterations = given<int64_t>(args, kIterations.train).has_value();
  const Unit& unit = by_iterations ? kIterations : kSamples;
  const Unit& others = by_iterations ? kSamples : kIterations;
  const int64_t train = needed<int64_t>(args, unit.train);
  for (const char* other : {others.train, others.decay, others.warmup}) {
    TORCH_CHECK_VALUE(given<int64_t>(args, other).value_or(0) == 0, "\"", unit.train, "\" and \"",
                      other, "\" count in other units; give iterations or samples");
  }
  const int64_t scale = by_iterations ? needed<int64_t>(args, "global_batch_size") : 1;
  schedule.wd_incr_steps = train * scale;
  schedule.lr_decay_steps = given<int64_t>(args, unit.decay).value_or(train) * scale;
  const std::optional<double> fraction = given<double>(args, "lr_warmup_fraction");
  const int64_t warmup = given<int64_t>(args, unit.warmup).value_or(0);
  TORCH_CHECK_VALUE(!fraction || warmup == 0, "\"lr_warmup_fraction\" and \"", unit.warmup,
                    "\" both say how long the warmup is; give one of them");
  const auto decay = static_cast<double>(schedule.lr_decay_steps);
  schedule.lr_warmup_steps = fraction ? *fraction * decay : static_cast<double>(warmup * scale);
  TORCH_CHECK_VALUE(decay > 0 && schedule.lr_warmup_steps >= 0 && schedule.lr_warmup_steps < decay,
                    "the learning rate's warmup takes ", schedule.lr_warmup_steps,
                    " samples, and its decay ", decay, "; the warmup must be shorter");
}

void set_weight_decay(MegatronSchedule& schedule, const Json& args) {
  const std::optional<double> start = given<double>(args, "start_weight_decay");
  const std::optional<double> end = given<double>(args, "end_weight_decay");
  schedule.wd_incr_style = style(args, "weight_decay_incr_style", "constant");
  if (schedule.wd_incr_style == MegatronDecay::kConstant) {
    TORCH_CHECK_VALUE(!start && !end,
                      "weight_decay_incr_style is \"constant\", so the weight decay is "
                      "\"weight_decay\"; leave start_weight_decay and end_weight_decay out");
    schedule.start_wd = schedule.end_wd = needed<double>(args, "weight_decay");
    return;
  }
  TORCH_CHECK_VALUE(schedule.wd_incr_style != MegatronDecay::kInverseSquareRoot,
                    "weight_decay_incr_style is constant, linear or cosine");
  TORCH_CHECK_VALUE(start && end && *start >= 0 && *end >= *start, "weight_decay_incr_style is \"",
                    to_string(schedule.wd_incr_style),
                    "\", which needs a start_weight_decay of at least 0 and an end_weight_decay "
                    "that is not below it");
  schedule.start_wd = *start;
  schedule.end_wd = *end;
}

// From 1 to 0 along half a cosine.
double half_cosine(double share) { return 0.5 * (std::cos(std::numbers::pi * share) + 1); }

}  // namespace

MegatronSchedule megatron_schedule(const Json& args) {
  MegatronSchedule schedule;
  schedule.max_lr = needed<double>(args, "lr");
  schedule.min_lr = given<double>(args, "min_lr").value_or(0);
  schedule.init_lr = given<double>(args, "lr_warmup_init").value_or(0);
  schedule.lr_decay_style = style(args, "lr_decay_style", "linear");
  TORCH_CHECK_VALUE(schedule.min_lr >= 0 && schedule.max_lr >= schedule.min_lr &&
                        schedule.init_lr <= schedule.max_lr,
                    "the learning rate goes from lr_warmup_init=", schedule.init_lr,
                    " up to lr=", schedule.max_lr, " and down to min_lr=", schedule.min_lr);
  set_lengths(schedule, args);
  set_weight_decay(schedule, args);
  return schedule;
}

double megatron_lr(const MegatronSchedule& schedule, int64_t step) {
  const double range = schedule.max_lr - schedule.min_lr;
  const double warmup = schedule.lr_warmup_steps;
  const auto taken = static_cast<double>(step);
  if (warmup > 0 && taken <= warmup) {
    return schedule.init_lr + (schedule.max_lr - schedule.init_lr) * taken / warmup;
  }
  if (schedule.lr_decay_style == MegatronDecay::kConstant) return schedule.max_lr;
  if (step > schedule.lr_decay_steps) return schedule.min_lr;
  if (schedule.lr_decay_style == MegatronDecay::kInverseSquareRoot) {
    return std::max(schedule.min_lr, schedule.max_lr * std::sqrt(std::max(warmup, 1.0)) /
                                         std::sqrt(std::max(taken, 1.0)));
  }
  const double share = (taken - warmup) / (static_cast<double>(schedule.lr_decay_steps) - warmup);
  const double left =
      schedule.lr_decay_style == MegatronDecay::kLinear ? 1 - share : half_cosine(share);
  return schedule.min_lr + left * range;
}

double megatron_weight_decay(const MegatronSchedule& schedule, int64_t step) {
  if (schedule.wd_incr_style == MegatronDecay::kConstant || step > schedule.wd_incr_steps) {
    return schedule.end_wd;
  }
  const double share = static_cast<double>(step) / static_cast<double>(schedule.wd_incr_steps);
  const double reached =
      schedule.wd_incr_style == MegatronDecay::kLinear ? share : half_cosine(1 - share);
  return schedule.start_wd + reached * (schedule.end_wd - schedule.start_wd);
}

}  // namespace accelerate
