#include "accelerate/parallel/sharded/options.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/config/zero_config.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/layout/placement.h"
#include "accelerate/parallel/sharded/calls.h"
#include "accelerate/parallel/sharded/units.h"
#include "accelerate/plan/plan.h"
#include "accelerate/precision/job_precision.h"
#include "accelerate/values/module_class.h"

namespace accelerate {
namespace {

// What parameters are in the job's mixed precision without a plugin; absent: what they are
// otherwise.
std::optional<at::ScalarType> param_dtype(const ModelPlan& plan) {
  if (!plan.handlers.autocast.enabled) return std::nullopt;
  switch (plan.precision.type()) {
    case PrecisionType::kFp16: return at::kHalf;
    // What is not computed in fp8.
    case PrecisionType::kFp8:
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

std::vector<ShardUnit> units_of_plugin(const torch::nn::Module& module,
                                       const FullyShardedDataParallelPlugin& plugin) {
  std::vector<ShardUnit> units = fsdp_units(module, plugin);
  // Without a policy the model's own unit has nearly all parameters, and would need memory for them
  // at once. They form groups by size instead.
  if (!plugin.auto_wrap_policy) units.pop_back();
  return units;
}

std::vector<ShardingGroup> groups_of(std::vector<ShardUnit> units) {
  std::vector<ShardingGroup> groups;
  for (ShardUnit& unit : units) {
    groups.push_back({.name = std::move(unit.name),
                      .unit = unit.modules.front(),
                      .parameters = std::move(unit.parameters),
                      .reshard_after_forward = unit.reshard_after_forward});
  }
  return groups;
}

// Whether a unit has what PyTorch would make one parameter of.
bool has_flat_units(const FullyShardedDataParallelPlugin& plugin) {
  return plugin.version() == 1 && !plugin.use_orig_params.value_or(false);
}

// What ranks that would divide rows have parts of already, as experts.
void add_cut_parameters(const ModelPlan& plan, std::vector<std::string>& ignored) {
  if (plan.layout == nullptr) return;
  for (const TensorPlacement& each : plan.layout->placements()) {
    if (!(each.cut_axes() & plan.roles.shard_axes).empty()) ignored.push_back(each.name);
  }
}

// Those of the program, or of the plugin.
std::vector<ShardUnit> flat_units(const torch::nn::Module& module,
                                  const FullyShardedDataParallelPlugin& plugin) {
  std::vector<std::string> ignored =
      get_parameters_from_modules(ignored_modules(module, plugin), module);
  if (auto units = internal::marked_units(module, ignored)) return *std::move(units);
  return fsdp_units(module, plugin);
}

// Names of the groups, and the parameters that have one.
struct Groups {
  std::vector<ShardingGroup> groups;
  std::unordered_set<const at::TensorImpl*> taken;

  bool take(const at::Tensor& parameter) {
    return parameter.defined() && taken.insert(parameter.unsafeGetTensorImpl()).second;
  }
};

// Layers of experts, of which each token uses some: ranks gather all of them, so that they gather
// the same.
void add_leaf_modules(const torch::nn::Module& module, const std::vector<std::string>& classes,
                      Groups& groups) {
  std::unordered_set<std::string> found;
  for (const auto& part : module.named_modules()) {
    const std::string name = module_class_name(*part.value());
    if (std::ranges::count(classes, name) == 0) continue;
    found.insert(name);
    ShardingGroup group{.name = part.key(), .gradients_differ = true};
    for (const auto& item : part.value()->named_parameters()) {
      if (groups.take(item.value())) {
        group.parameters.push_back(part.key().empty() ? item.key() : part.key() + "." + item.key());
      }
    }
    if (!group.parameters.empty()) groups.groups.push_back(std::move(group));
  }
  for (const std::string& each : classes) {
    TORCH_CHECK_VALUE(found.contains(each), "leaf modules: the model has no module of class ",
                      each);
  }
}

// Small parameters, which are gathered together once after each step of the optimizer.
void add_persistent_parameters(const torch::nn::Module& module, const ZeroConfig& config,
                               Groups& groups) {
  ShardingGroup group{
      .name = "small parameters", .reshard_after_forward = false, .reshard_after_backward = false};
  int64_t total = 0;
  for (const auto& item : module.named_parameters()) {
    const int64_t numel = item.value().numel();
    if (numel >= config.param_persistence_threshold ||
        total + numel > config.model_persistence_threshold || !groups.take(item.value())) {
      continue;
    }
    total += numel;
    group.parameters.push_back(item.key());
  }
  if (!group.parameters.empty()) groups.groups.push_back(std::move(group));
}

// Each is a thread of the host while it is read or written.
int blocks_in_flight(const ZeroAio& aio) {
  constexpr int64_t kMost = 64;
  return static_cast<int>(
      std::min(kMost, std::min(aio.queue_depth, kMost) * std::min(aio.thread_count, kMost)));
}

}  // namespace

void check_trained_alike(const torch::nn::Module& module,
                         const FullyShardedDataParallelPlugin& plugin) {
  if (!has_flat_units(plugin)) return;
  const auto parameters = module.named_parameters();
  for (const ShardUnit& unit : flat_units(module, plugin)) {
    for (const std::string& name : unit.parameters) {
      const std::string& first = unit.parameters.front();
      TORCH_CHECK_VALUE(
          parameters[name].requires_grad() == parameters[first].requires_grad(),
          "FSDP 1 with use_orig_params = false trains all parameters of a unit or none, but of "
          "unit \"",
          unit.name, "\" \"", parameters[name].requires_grad() ? name : first,
          "\" requires gradients and \"", parameters[name].requires_grad() ? first : name,
          "\" does not; set use_orig_params = true, or make them units of their own");
    }
  }
}

void check_in_one_group(const torch::nn::Module& module,
                        const FullyShardedDataParallelPlugin& plugin,
                        const torch::optim::Optimizer& optimizer) {
  if (!has_flat_units(plugin) || optimizer.param_groups().size() < 2) return;
  std::unordered_map<const at::TensorImpl*, size_t> groups;
  for (size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    for (const at::Tensor& parameter : optimizer.param_groups()[i].params()) {
      groups.emplace(parameter.unsafeGetTensorImpl(), i);
    }
  }
  const auto parameters = module.named_parameters();
  for (const ShardUnit& unit : flat_units(module, plugin)) {
    const std::string* first = nullptr;
    size_t first_group = 0;
    for (const std::string& name : unit.parameters) {
      const auto found = groups.find(parameters[name].unsafeGetTensorImpl());
      if (found == groups.end()) continue;
      if (first == nullptr) {
        first = &name;
        first_group = found->second;
      }
      TORCH_CHECK_VALUE(found->second == first_group,
                        "FSDP 1 with use_orig_params = false has the parameters of a unit in one "
                        "group of an optimizer, but of unit \"",
                        unit.name, "\" \"", *first, "\" is in group ", first_group, " and \"", name,
                        "\" in group ", found->second,
                        "; set use_orig_params = true, or make them units of their own");
    }
  }
}

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
  if (plan.zero != nullptr) {
    return zero_sharding_options(module, *plan.zero, handler.group_bytes,
                                 size_of(plan.roles.shards));
  }
  ShardingOptions options{.group_bytes = handler.group_bytes, .gather_ahead = handler.prefetch};
  if (!handler.prefetch) options.gather_ahead_in_backward = GatherAhead::kNever;
  const FullyShardedDataParallelPlugin* plugin = plan.fsdp;
  if (plugin == nullptr) {
    options.param_dtype = param_dtype(plan);
  } else {
    const ShardPrecision precision = plugin->precision();
    options.ignored = get_parameters_from_modules(ignored_modules(module, *plugin), module);
    options.reshard_after_forward = plugin->reshards_after_forward();
    if (handler.prefetch) options.gather_ahead_in_backward = gather_ahead_in_backward(*plugin);
    options.param_dtype = precision.param_dtype;
    options.reduce_dtype = precision.reduce_dtype;
    if (precision.keep_low_precision_grads) {
      options.gradient_dtype =
          precision.reduce_dtype ? precision.reduce_dtype : precision.param_dtype;
    }
    options.offload = plugin->offloads_parameters();
    options.pin_memory = plugin->pins_memory();
  }
  add_cut_parameters(plan, options.ignored);
  if (auto units = internal::marked_units(module, options.ignored)) {
    options.groups = groups_of(*std::move(units));
  } else if (plugin != nullptr) {
    options.groups = groups_of(units_of_plugin(module, *plugin));
  }
  for (ShardingGroup& group : options.groups) {
    std::erase_if(group.parameters, [&options](const std::string& name) {
      return std::ranges::count(options.ignored, name) > 0;
    });
  }
  return options;
}

ShardedPrecision zero_precision(const ZeroConfig& config) {
  return {.input_dtype = config.dtype(), .buffer_dtype = config.dtype()};
}

ShardingOptions zero_sharding_options(const torch::nn::Module& module, const ZeroConfig& config,
                                      int64_t group_bytes, int ranks) {
  ShardingOptions options{.group_bytes = group_bytes};
  options.param_dtype = config.dtype();
  options.reduce_dtype = config.communication_data_type;
  // Sums of gradients in fp16 would lose what losses are scaled for.
  if (config.dtype() == at::kBFloat16) options.gradient_dtype = at::kBFloat16;
  options.gradient_predivide_factor =
      config.prescale_gradients ? ranks : config.gradient_predivide_factor;
  options.reduces_each_pass = config.stage >= 2;
  const bool optimizer_on_host = config.offload_optimizer.device != OffloadDevice::kNone;
  const bool parameters_on_host = config.offload_param.device != OffloadDevice::kNone;
  options.offload = optimizer_on_host || parameters_on_host;
  if (optimizer_on_host) options.part_on_device = 1 - config.offload_optimizer.ratio;
  options.pin_memory = config.offload_optimizer.pin_memory || config.offload_param.pin_memory;
  if (config.offload_optimizer.device == OffloadDevice::kNvme) {
    const ZeroOffloadOptimizer& offload = config.offload_optimizer;
    options.shards_on_disk = SwapOptions{.folder = offload.nvme_path,
                                         .buffer_count = static_cast<int>(offload.buffer_count),
                                         .block_bytes = config.aio.block_size,
                                         .blocks_in_flight = blocks_in_flight(config.aio),
                                         .pin_memory = offload.pin_memory,
                                         .pipeline_read = offload.pipeline_read,
                                         .pipeline_write = offload.pipeline_write};
  }
  const auto element =
      static_cast<int64_t>(c10::elementSize(config.dtype().value_or(c10::ScalarType::Float)));
  if (config.stage < 3) {
    options.keeps_parameters = true;
    // Larger ones would only begin later.
    constexpr int64_t kLargestBucket = int64_t{32} << 20;
    options.group_bytes = config.reduce_bucket_size < kLargestBucket / element
                              ? std::max<int64_t>(1, config.reduce_bucket_size * element)
                              : kLargestBucket;
    return options;
  }
  if (config.offload_param.device == OffloadDevice::kNvme) {
    options.rows_on_disk =
        SwapOptions{.folder = config.offload_param.nvme_path,
                    .buffer_count = static_cast<int>(config.offload_param.buffer_count),
                    .buffer_bytes = config.offload_param.buffer_size * element,
                    .block_bytes = config.aio.block_size,
                    .blocks_in_flight = blocks_in_flight(config.aio),
                    .pin_memory = config.offload_param.pin_memory};
    options.rows_on_host = config.offload_param.max_in_cpu;
  }
  options.keeps_cast_shards = !parameters_on_host && (config.dtype() || optimizer_on_host);
  options.max_reuse_distance = config.max_reuse_distance;
  options.max_live = config.max_live_parameters;
  options.gather_ahead = config.prefetch_bucket_size > 0;
  if (!options.gather_ahead) options.gather_ahead_in_backward = GatherAhead::kNever;
  Groups groups;
  add_leaf_modules(module, config.leaf_module_classes, groups);
  add_persistent_parameters(module, config, groups);
  options.groups = std::move(groups.groups);
  return options;
}

}  // namespace accelerate
