#include "accelerate/optim/zero_objects.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "accelerate/config/zero_keys.h"
#include "accelerate/optim/foreach_optimizers.h"
#include "accelerate/optim/fused_optimizers.h"
#include "accelerate/optim/schedulers/deepspeed.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate::optim {
namespace {

using torch::optim::OptimizerParamGroup;
using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;

// A setting that the type does not have must be what it is by default.
template <typename Asked>
void check_settings(const Asked& asked, std::optional<Asked> ZeroConfig::* block,
                    absl::string_view prefix) {
  ZeroConfig whole;
  whole.*block = asked;
  const std::string type = to_string(asked.type);
  for (const accelerate::internal::ZeroKey& row : accelerate::internal::zero_keys()) {
    const bool has = row.types.empty() || std::ranges::count(row.types, type) > 0;
    TORCH_CHECK_VALUE(has || !absl::StartsWith(row.info.key, prefix) || row.is_default(whole), type,
                      " of the DeepSpeed configuration: this library's has no ",
                      row.info.key.substr(prefix.size()));
  }
}

template <typename Kind, typename Options>
OptimizerPtr made(const DummyOptim& placeholder, const Options& defaults) {
  std::vector<OptimizerParamGroup> groups;
  for (const DummyParamGroup& each : placeholder.groups) {
    auto options = std::make_unique<Options>(defaults);
    if (each.lr) options->lr(*each.lr);
    if (each.weight_decay) options->weight_decay(*each.weight_decay);
    groups.emplace_back(each.params, std::move(options));
  }
  auto made = std::make_unique<Kind>(groups, defaults);
  internal::restore_options(*made, groups);
  return made;
}

template <typename Kind, typename Options>
OptimizerPtr made_adam(const DummyOptim& placeholder, const ZeroOptimizer& asked) {
  return made<Kind>(placeholder, Options(asked.lr)
                                     .betas(asked.betas)
                                     .eps(asked.eps)
                                     .weight_decay(asked.weight_decay)
                                     .amsgrad(asked.amsgrad));
}

template <typename Kind, typename Options>
OptimizerPtr remade(const torch::optim::Optimizer& from) {
  const auto& defaults = static_cast<const Options&>(from.defaults());
  auto made = std::make_unique<Kind>(from.param_groups(), defaults);
  internal::restore_options(*made, from.param_groups());
  for (const auto& [key, state] : from.state()) made->state()[key] = state->clone();
  return made;
}

std::unique_ptr<Scheduler> made_scheduler(const ZeroScheduler& asked,
                                          torch::optim::Optimizer& optimizer) {
  switch (asked.type) {
    case ZeroSchedulerType::kWarmupLr:
      return std::make_unique<WarmupLR>(
          optimizer, WarmupLROptions{.warmup_min_lr = asked.warmup_min_lr,
                                     .warmup_max_lr = asked.warmup_max_lr,
                                     .warmup_num_steps = asked.warmup_num_steps,
                                     .warmup_type = asked.warmup_type,
                                     .last_batch_iteration = asked.last_batch_iteration});
    case ZeroSchedulerType::kWarmupDecayLr:
      return std::make_unique<WarmupDecayLR>(
          optimizer, WarmupDecayLROptions{.total_num_steps = asked.total_num_steps,
                                          .warmup_min_lr = asked.warmup_min_lr,
                                          .warmup_max_lr = asked.warmup_max_lr.value_or(0.001),
                                          .warmup_num_steps = asked.warmup_num_steps,
                                          .warmup_type = asked.warmup_type,
                                          .last_batch_iteration = asked.last_batch_iteration});
    case ZeroSchedulerType::kWarmupCosineLr:
      return std::make_unique<WarmupCosineLR>(
          optimizer, WarmupCosineLROptions{.total_num_steps = asked.total_num_steps,
                                           .warmup_min_ratio = asked.warmup_min_ratio,
                                           .cos_min_ratio = asked.cos_min_ratio,
                                           .warmup_num_steps = asked.warmup_num_steps,
                                           .warmup_type = asked.warmup_type,
                                           .last_batch_iteration = asked.last_batch_iteration});
    case ZeroSchedulerType::kOneCycle:
      return std::make_unique<OneCycle>(
          optimizer, OneCycleOptions{.cycle_min_lr = asked.cycle_min_lr,
                                     .cycle_max_lr = asked.cycle_max_lr,
                                     .decay_lr_rate = asked.decay_lr_rate,
                                     .cycle_first_step_size = asked.cycle_first_step_size,
                                     .cycle_second_step_size = asked.cycle_second_step_size,
                                     .cycle_first_stair_count = asked.cycle_first_stair_count,
                                     .cycle_second_stair_count = asked.cycle_second_stair_count,
                                     .decay_step_size = asked.decay_step_size,
                                     .cycle_momentum = asked.cycle_momentum,
                                     .cycle_min_mom = asked.cycle_min_mom,
                                     .cycle_max_mom = asked.cycle_max_mom,
                                     .decay_mom_rate = asked.decay_mom_rate,
                                     .last_batch_iteration = asked.last_batch_iteration});
    case ZeroSchedulerType::kLrRangeTest:
      return std::make_unique<LRRangeTest>(
          optimizer, LRRangeTestOptions{.lr_range_test_min_lr = asked.lr_range_test_min_lr,
                                        .lr_range_test_step_size = asked.lr_range_test_step_size,
                                        .lr_range_test_step_rate = asked.lr_range_test_step_rate,
                                        .lr_range_test_staircase = asked.lr_range_test_staircase,
                                        .last_batch_iteration = asked.last_batch_iteration});
  }
  TORCH_CHECK(false, "unreachable");
}

}  // namespace

OptimizerPtr make_optimizer(const ZeroOptimizer& asked, const DummyOptim& placeholder) {
  const bool has_parameters = std::ranges::any_of(
      placeholder.groups, [](const DummyParamGroup& group) { return !group.params.empty(); });
  TORCH_CHECK_VALUE(has_parameters, "the DummyOptim has no parameters");
  const bool is_adam =
      asked.type == ZeroOptimizerType::kAdam || asked.type == ZeroOptimizerType::kAdamW;
  TORCH_CHECK_VALUE(!is_adam || asked.bias_correction, to_string(asked.type),
                    " of the DeepSpeed configuration: bias_correction cannot be false, because the "
                    "fused step always corrects the moments");
  TORCH_CHECK_VALUE(asked.type != ZeroOptimizerType::kAdamW || asked.adam_w_mode,
                    "AdamW of the DeepSpeed configuration: adam_w_mode cannot be false; for a "
                    "weight decay within the gradients, say \"Adam\"");
  check_settings(asked, &ZeroConfig::optimizer, "optimizer.params.");
  switch (asked.type) {
    case ZeroOptimizerType::kAdam:
      if (!asked.adam_w_mode) {
        return made_adam<Adam, torch::optim::AdamOptions>(placeholder, asked);
      }
      [[fallthrough]];
    case ZeroOptimizerType::kAdamW:
      return made_adam<AdamW, torch::optim::AdamWOptions>(placeholder, asked);
    case ZeroOptimizerType::kAdagrad:
      return made<Adagrad>(
          placeholder,
          torch::optim::AdagradOptions(asked.lr).eps(asked.eps).weight_decay(asked.weight_decay));
    case ZeroOptimizerType::kLion:
      return made<Lion>(placeholder,
                        LionOptions(asked.lr).betas(asked.betas).weight_decay(asked.weight_decay));
    case ZeroOptimizerType::kLamb:
      return made<Lamb>(placeholder, LambOptions(asked.lr)
                                         .betas(asked.betas)
                                         .eps(asked.eps)
                                         .weight_decay(asked.weight_decay)
                                         .bias_correction(asked.bias_correction)
                                         .min_coeff(asked.min_coeff)
                                         .max_coeff(asked.max_coeff));
    case ZeroOptimizerType::kSgd:
      return made<SGD>(placeholder, torch::optim::SGDOptions(asked.lr)
                                        .momentum(asked.momentum)
                                        .dampening(asked.dampening)
                                        .weight_decay(asked.weight_decay)
                                        .nesterov(asked.nesterov));
  }
  TORCH_CHECK(false, "unreachable");
}

std::unique_ptr<Scheduler> make_scheduler(const ZeroScheduler& asked,
                                          torch::optim::Optimizer& optimizer) {
  check_settings(asked, &ZeroConfig::scheduler, "scheduler.params.");
  std::unique_ptr<Scheduler> scheduler = made_scheduler(asked, optimizer);
  if (!Runtime::is_on_first_rank()) return scheduler;
  if (asked.total_num_steps > 0 && asked.total_num_steps < asked.warmup_num_steps) {
    TORCH_WARN(to_string(asked.type), ": total_num_steps is ", asked.total_num_steps,
               ", fewer than the ", asked.warmup_num_steps,
               " of warmup_num_steps: the rate drops to its end right after the warm-up");
  }
  const auto* cycle = dynamic_cast<const OneCycle*>(scheduler.get());
  if (cycle != nullptr && asked.cycle_momentum && !cycle->cycles_momentum()) {
    TORCH_WARN("OneCycle: cycle_momentum has no effect, because the optimizer has no betas");
  }
  return scheduler;
}

std::unique_ptr<torch::optim::LRScheduler> make_scheduler(const std::optional<ZeroScheduler>& asked,
                                                          const DummyScheduler& placeholder,
                                                          torch::optim::Optimizer& optimizer) {
  if (placeholder.lr_scheduler_callable != nullptr) {
    auto scheduler = placeholder.lr_scheduler_callable(optimizer);
    TORCH_CHECK_VALUE(scheduler != nullptr,
                      "DummyScheduler: lr_scheduler_callable returned no schedule");
    return scheduler;
  }
  TORCH_CHECK_VALUE(asked.has_value(),
                    "a DummyScheduler needs a \"scheduler\" in the DeepSpeed configuration, or an "
                    "lr_scheduler_callable");
  return make_scheduler(*asked, optimizer);
}

OptimizerPtr map_pytorch_optim_to_deepspeed(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  const auto is = [&](const auto&... kinds) { return ((typeid(optimizer) == kinds) || ...); };
  if (is(typeid(torch::optim::Adam), typeid(optim::Adam))) {
    return remade<optim::Adam, AdamOptions>(optimizer);
  }
  if (is(typeid(torch::optim::AdamW), typeid(optim::AdamW))) {
    return remade<optim::AdamW, AdamWOptions>(optimizer);
  }
  if (is(typeid(torch::optim::SGD), typeid(optim::SGD))) {
    return remade<optim::SGD, SGDOptions>(optimizer);
  }
  if (is(typeid(torch::optim::Adagrad), typeid(optim::Adagrad))) {
    return remade<optim::Adagrad, AdagradOptions>(optimizer);
  }
  if (is(typeid(RMSprop))) return remade<RMSprop, RMSpropOptions>(optimizer);
  if (is(typeid(Lion))) return remade<Lion, LionOptions>(optimizer);
  if (is(typeid(Lamb))) return remade<Lamb, LambOptions>(optimizer);
  TORCH_CHECK_VALUE(false,
                    "map_pytorch_optim_to_deepspeed: ", c10::demangle(typeid(optimizer).name()),
                    " has no variant for host memory; prepare it as it is");
}

}  // namespace accelerate::optim
