#include "accelerate/parallel/sharded/zero.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/values/module_class.h"

namespace accelerate {
namespace {

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
