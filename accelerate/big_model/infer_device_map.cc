#include "accelerate/big_model/infer_device_map.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/number_text.h"
#include "accelerate/modules/module_state_dict.h"
#include "accelerate/modules/module_tensors.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/runtime/device_cache.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/values/dtypes.h"
#include "accelerate/values/module_class.h"

namespace accelerate {
namespace {

using torch::nn::Module;

// For a host whose memory is not counted.
constexpr double kUncounted = 4611686018427387904.0;  // 2^62

template <typename T>
T value_of(absl::StatusOr<T> result) {
  TORCH_CHECK_VALUE(result.ok(), result.status().message());
  return *std::move(result);
}

}  // namespace

ModuleTree module_tree(const Module& root) {
  ModuleTree tree(module_class_name(root));
  const std::set<std::string> non_persistent =
      get_non_persistent_buffers(root, /*recurse=*/true, /*fqns=*/true);
  NamedTensors tensors;
  std::vector<ModuleTree::Tensor> added;  // their numbers
  const auto add_tensor = [&](ModuleTree::Module module, const std::string& name,
                              const at::Tensor& tensor, ModuleTree::TensorInfo info) {
    if (!tensor.defined()) return;
    info.name = name;
    const std::vector<KeptTensor> kept = kept_tensors(name, tensor);
    const at::Tensor& values = kept.front().tensor;
    info.dtype = dtype_name(values.scalar_type());
    info.elements = static_cast<double>(values.numel());
    // Statistics beside the values, in units of these.
    for (size_t i = 1; i < kept.size(); ++i) {
      info.elements +=
          static_cast<double>(kept[i].tensor.nbytes()) / static_cast<double>(values.element_size());
    }
    added.push_back(tree.add_tensor(module, std::move(info)));
    tensors.emplace_back(name, values);
  };
  // Each module before its children.
  const auto add = [&](const auto& self, const Module& module, ModuleTree::Module number,
                       const std::string& prefix) -> void {
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      add_tensor(number, item.key(), item.value(), {});
    }
    for (const auto& item : module.named_buffers(/*recurse=*/false)) {
      const bool is_persistent = !non_persistent.contains(absl::StrCat(prefix, item.key()));
      add_tensor(number, item.key(), item.value(),
                 {.is_buffer = true, .is_persistent = is_persistent});
    }
    for (const auto& child : module.named_children()) {
      if (!child.value()) continue;
      const ModuleTree::Module below =
          tree.add_module(number, child.key(), module_class_name(*child.value()));
      self(self, *child.value(), below, absl::StrCat(prefix, child.key(), "."));
    }
  };
  add(add, root, 0, "");
  const std::vector<size_t> firsts = internal::first_identical_views(tensors);
  for (size_t i = 0; i < firsts.size(); ++i) {
    if (firsts[i] != i) tree.tie(added[firsts[i]], added[i]);
  }
  return tree;
}

NamedSizes compute_module_sizes(const Module& module, const SizeOptions& options,
                                bool buffers_only) {
  return value_of(compute_module_sizes(module_tree(module), options, buffers_only));
}

double compute_module_total_buffer_size(const Module& module, const SizeOptions& options) {
  return value_of(compute_module_total_buffer_size(module_tree(module), options));
}

LargestLayer get_max_layer_size(const Module& module,
                                const std::vector<std::string>& no_split_module_classes,
                                const SizeOptions& options) {
  return value_of(get_max_layer_size(module_tree(module), no_split_module_classes, options));
}

MaximumSizes calculate_maximum_sizes(const Module& module) {
  return value_of(calculate_maximum_sizes(module_tree(module)));
}

MaxMemory get_max_memory() {
  const FreeMemory free = Runtime::current().free_memory();
  const double host = free.host ? static_cast<double>(*free.host) : kUncounted;
  const c10::Device device = Runtime::current().device();
  // Devices of Apple's have the host's memory.
  if (device.is_mps()) return {{DevicePlacement::mps(), host}};
  MaxMemory limits;
  bool is_shared = false;
  for (const auto& [index, bytes] : free.accelerators) {
    limits.emplace_back(DevicePlacement::accelerator(index), std::max<int64_t>(bytes, 0));
    is_shared |=
        has_memory_of_host(c10::Device(device.type(), static_cast<c10::DeviceIndex>(index)));
  }
  // What an integrated device has free is the host's, and would count twice.
  if (!is_shared) limits.emplace_back(DevicePlacement::cpu(), host);
  return limits;
}

MaxMemory get_max_memory(MaxMemory limits) {
  limits = value_of(ordered_max_memory(std::move(limits)));
  const Runtime* const runtime = Runtime::find_current();
  if (runtime == nullptr) return limits;
  std::vector<std::string> missing;
  const FreeMemory free = runtime->free_memory();
  for (const auto& [device, bytes] : limits) {
    const bool is_there = std::ranges::any_of(
        free.accelerators, [&](const auto& each) { return each.first == device.index(); });
    if (device.is_accelerator() && !is_there) missing.push_back(device.text());
  }
  if (!missing.empty()) {
    TORCH_WARN("limits are given for accelerators that this rank does not have: ",
               absl::StrJoin(missing, ", "));
  }
  return limits;
}

MaxMemory get_balanced_memory(const Module& module, const std::optional<MaxMemory>& limits,
                              BalanceOptions options) {
  if (!limits) options.limits_are_free_memory = true;
  return value_of(get_balanced_memory(
      module_tree(module), limits ? get_max_memory(*limits) : get_max_memory(), options));
}

InferredDeviceMap plan_device_map(const Module& module, const std::optional<MaxMemory>& limits,
                                  const InferOptions& options) {
  InferredDeviceMap inferred = value_of(infer_auto_device_map(
      module_tree(module), limits ? get_max_memory(*limits) : get_max_memory(), options));
  for (const std::string& text : inferred.warnings()) TORCH_WARN(text);
  return inferred;
}

DeviceMap infer_auto_device_map(const Module& module, const std::optional<MaxMemory>& limits,
                                const InferOptions& options) {
  return plan_device_map(module, limits, options).map;
}

void check_device_map(const Module& module, const DeviceMap& device_map) {
  const ModuleTree tree = module_tree(module);
  std::vector<std::string> unknown = names_without_module(tree, device_map);
  std::erase_if(unknown, [&](const std::string& name) { return tree.find_tensor(name) >= 0; });
  if (!unknown.empty()) {
    TORCH_WARN("the device map has names that the model does not have: ",
               absl::StrJoin(unknown, ", "));
  }
  const absl::Status checked = check_device_map(tree, device_map);
  TORCH_CHECK_VALUE(checked.ok(), checked.message());
}

DeviceMap generate_device_map(const Module& module, int num_processes,
                              const std::vector<std::string>& no_split_module_classes,
                              const std::optional<MaxMemory>& max_memory) {
  TORCH_CHECK_VALUE(num_processes >= 1, "a pipeline has 1 stage or more, not ", num_processes);
  const InferOptions options = {.no_split_module_classes = no_split_module_classes,
                                .clean_result = false};
  if (num_processes == 1 || max_memory) return infer_auto_device_map(module, max_memory, options);
  const ModuleTree tree = module_tree(module);
  const MaximumSizes sizes = value_of(calculate_maximum_sizes(tree));
  const std::pair<std::string, std::string> part = absl::StrSplit(
      byte_text((sizes.total + sizes.largest_layer.bytes) / static_cast<double>(num_processes)),
      ' ');
  double number = 0;
  TORCH_INTERNAL_ASSERT(absl::SimpleAtod(part.first, &number));
  // The text has steps of 1024, and limits are read in steps of 1000.
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"bytes", 1}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"PB", 1e15}};
  const auto* const unit =
      std::ranges::find(kUnits, part.second, &std::pair<std::string_view, double>::first);
  TORCH_INTERNAL_ASSERT(unit != std::end(kUnits));
  const double limit = std::trunc(std::ceil(number) * 1.1 * unit->second);
  MaxMemory limits;
  for (int i = 0; i < num_processes; ++i) {
    limits.emplace_back(DevicePlacement::accelerator(i), limit);
  }
  return value_of(infer_auto_device_map(tree, limits, options)).map;
}

std::optional<DeviceMap> internal::infer_by_strategy(const Module& module,
                                                     const std::string& strategy,
                                                     std::optional<MaxMemory> limits,
                                                     const InferOptions& options) {
  const bool low_zero = strategy == "balanced_low_0";
  if (low_zero || strategy == "auto" || strategy == "balanced") {
    limits = get_balanced_memory(module, limits,
                                 {.sizes = options.sizes,
                                  .no_split_module_classes = options.no_split_module_classes,
                                  .low_zero = low_zero});
  } else if (strategy != "sequential") {
    return std::nullopt;
  }
  return infer_auto_device_map(module, limits, options);
}

}  // namespace accelerate
