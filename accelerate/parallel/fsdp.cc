#include "accelerate/parallel/fsdp.h"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/parallel/apply.h"
#include "accelerate/parallel/fsdp_units.h"
#include "accelerate/parallel/zero.h"

namespace accelerate {
namespace {

// What parameters are in the job's mixed precision without a plugin; absent: what they are
// otherwise.
std::optional<at::ScalarType> param_dtype(const ModelPlan& plan) {
  if (!plan.handlers.autocast.enabled) return std::nullopt;
  switch (plan.precision.type()) {
    case PrecisionType::kFp16: return at::kHalf;
    case PrecisionType::kBf16: return at::kBFloat16;
    default: return std::nullopt;
  }
}

GatherAhead gather_ahead_in_backward(const FullyShardedDataParallelPlugin& plugin) {
  if (plugin.version() == 2) return GatherAhead::kBeforeGradient;
  if (!plugin.backward_prefetch) return GatherAhead::kNever;
  return std::get<BackwardPrefetch>(*plugin.backward_prefetch) == BackwardPrefetch::kBackwardPre
             ? GatherAhead::kBeforeGradient
             : GatherAhead::kAfterGradient;
}

std::vector<ShardingGroup> groups_of(const torch::nn::Module& module,
                                     const FullyShardedDataParallelPlugin& plugin) {
  std::vector<ShardUnit> units = fsdp_units(module, plugin);
  // Without a policy the model's own unit has nearly all parameters, and would need memory for them
  // at once. They form groups by size instead.
  if (!plugin.auto_wrap_policy) units.pop_back();
  std::vector<ShardingGroup> groups;
  for (ShardUnit& unit : units) {
    groups.push_back({.name = std::move(unit.name),
                      .parameters = std::move(unit.parameters),
                      .reshard_after_forward = unit.reshard_after_forward});
  }
  return groups;
}

}  // namespace

ShardedPrecision sharded_precision(const ModelPlan& plan) {
  if (plan.zero != nullptr) return zero_precision(*plan.zero);
  if (plan.fsdp == nullptr) {
    const std::optional<at::ScalarType> dtype = param_dtype(plan);
    if (!dtype) return {};
    // Outputs as automatic mixed precision has them.
    return {.input_dtype = dtype, .output_dtype = at::kFloat};
  }
  const ShardPrecision precision = plan.fsdp->precision();
  return {.input_dtype = precision.cast_inputs ? precision.param_dtype : std::nullopt,
          .output_dtype = precision.output_dtype,
          .buffer_dtype = precision.buffer_dtype,
          .autocast = plan.fsdp->version() == 1};
}

ShardingOptions sharding_options(const torch::nn::Module& module, const ModelPlan& plan) {
  const ShardedDataParallelKwargs& handler = plan.handlers.sharded;
  if (plan.zero != nullptr) return zero_sharding_options(module, *plan.zero, handler.group_bytes);
  ShardingOptions options{.group_bytes = handler.group_bytes, .gather_ahead = handler.prefetch};
  if (!handler.prefetch) options.gather_ahead_in_backward = GatherAhead::kNever;
  if (plan.fsdp == nullptr) {
    options.param_dtype = param_dtype(plan);
    return options;
  }
  const FullyShardedDataParallelPlugin& plugin = *plan.fsdp;
  const ShardPrecision precision = plugin.precision();
  options.groups = groups_of(module, plugin);
  options.ignored = get_parameters_from_modules(ignored_modules(module, plugin), module);
  options.reshard_after_forward = plugin.reshards_after_forward();
  if (handler.prefetch) options.gather_ahead_in_backward = gather_ahead_in_backward(plugin);
  options.param_dtype = precision.param_dtype;
  options.reduce_dtype = precision.reduce_dtype;
  options.offload = plugin.offloads_parameters();
  options.pin_memory = plugin.pins_memory();
  return options;
}

}  // namespace accelerate
