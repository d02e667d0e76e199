/// Device maps of modules: sizes, limits of the devices that there are, and plans.
///
/// The planning itself is that of accelerate/device_map, which sees names and sizes alone; here are
/// what it needs of a module and of the rank's devices. Modules may be empty, as those built in
/// init_empty_weights() are. Local, all of it.
///
/// Units:   bytes, as doubles.
/// Errors:  c10::ValueError for names that no dtype has, for limits that cannot be, and for
///          tensors without a device.
/// Threads: the rank's thread.
/// Mirrors: accelerate utils/modeling.py, the functions of the same names; inference.py,
///          generate_device_map.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/device_map/device_map.h"
#include "accelerate/device_map/infer.h"
#include "accelerate/device_map/max_memory.h"
#include "accelerate/device_map/module_sizes.h"
#include "accelerate/device_map/module_tree.h"

namespace accelerate {

/// The modules and tensors. Tensors that are one, or the same view of the same memory, have one
/// identity; buffers that non_persistent() marked are not persistent.
ModuleTree module_tree(const torch::nn::Module& module);

NamedSizes compute_module_sizes(const torch::nn::Module& module, const SizeOptions& options = {},
                                bool buffers_only = false);
double compute_module_total_buffer_size(const torch::nn::Module& module,
                                        const SizeOptions& options = {});
/// The layers below the root, and its own tensors.
LargestLayer get_max_layer_size(const torch::nn::Module& module,
                                const std::vector<std::string>& no_split_module_classes = {},
                                const SizeOptions& options = {});
MaximumSizes calculate_maximum_sizes(const torch::nn::Module& module);

/// The free memory of each accelerator of the kind that the rank computes on, and of the host: what
/// Runtime::free_memory says. Where it does not count the host's, as in a simulation, the host's
/// limit is 2^62 bytes. The host has no limit of its own beside devices that have their memory from
/// it: Apple's, and integrated GPUs.
/// Errors: c10::Error without a Runtime.
MaxMemory get_max_memory();
/// The limits in order. A warning names accelerators that there are not, if there is a Runtime.
MaxMemory get_max_memory(MaxMemory limits);

/// Without limits: those of get_max_memory(), of which one accelerator alone keeps a tenth.
MaxMemory get_balanced_memory(const torch::nn::Module& module,
                              const std::optional<MaxMemory>& limits = std::nullopt,
                              BalanceOptions options = {});

/// The whole plan; its warnings go to the log as well. Without limits: those of get_max_memory().
InferredDeviceMap plan_device_map(const torch::nn::Module& module,
                                  const std::optional<MaxMemory>& limits = std::nullopt,
                                  const InferOptions& options = {});
/// The plan's map.
DeviceMap infer_auto_device_map(const torch::nn::Module& module,
                                const std::optional<MaxMemory>& limits = std::nullopt,
                                const InferOptions& options = {});

/// A warning names entries that the module does not have.
/// Errors: c10::ValueError naming the parameters and persistent buffers that the map leaves out.
void check_device_map(const torch::nn::Module& module, const DeviceMap& device_map);

/// A map for a pipeline of `num_processes` stages of about the same size, device i being stage i:
/// each may take the n-th part of the model and of its largest layer, rounded up to a whole number
/// of the unit that convert_bytes has for it, and a tenth more. With one process, or with limits,
/// the map that those allow.
DeviceMap generate_device_map(const torch::nn::Module& module, int num_processes = 1,
                              const std::vector<std::string>& no_split_module_classes = {},
                              const std::optional<MaxMemory>& max_memory = std::nullopt);

namespace internal {

/// A map that is asked for by a word: all of "auto", "balanced", "balanced_low_0" and "sequential"
/// but the last balance the accelerators' limits first. Absent for other words.
/// Errors: those of infer_auto_device_map.
std::optional<DeviceMap> infer_by_strategy(const torch::nn::Module& module,
                                           const std::string& strategy,
                                           std::optional<MaxMemory> limits,
                                           const InferOptions& options);

}  // namespace internal
}  // namespace accelerate
