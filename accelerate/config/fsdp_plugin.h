/// How ranks divide models in sharded training: the options of FSDP, from the program or from the
/// variables FSDP_*.
///
///     Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{
///         .fsdp_version = 2,
///         .auto_wrap_policy = "transformer_based_wrap",
///         .transformer_cls_names_to_wrap = std::vector<std::string>{"Block"}}});
///
/// A field that is given takes precedence over its variable, which stands beside it. resolve()
/// reads the variables, checks everything and gives each field its final type, the one that is
/// named "resolved" below; the Accelerator does that, and its AcceleratorState keeps the result.
/// The member functions are for a resolved plugin. Version 1 and 2 are HF Accelerate's FSDP 1
/// and 2. Here both have the same engine, which shards each parameter along dim 0; the version
/// decides which fields are valid and what they mean.
///
/// Errors:  c10::ValueError naming the field or variable, what it has and what it may have.
/// Threads: values.
/// Mirrors: accelerate utils/dataclasses.py, FullyShardedDataParallelPlugin; the structs are those
///          of torch.distributed.fsdp with their fields and defaults.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <c10/core/ScalarType.h>

#include "accelerate/base/enums.h"
#include "accelerate/base/fields.h"
#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/platform/environment.h"

namespace accelerate {

/// Whether a plugin is made from the variables below where the program gives none.
inline constexpr char kUseFsdp[] = "ACCELERATE_USE_FSDP";

/// A member, its number from 1, or its name in any case.
template <typename E>
using EnumChoice = std::variant<E, int64_t, std::string>;

/// Where parameters are between their uses: version 1.
struct CPUOffload {
  bool offload_params = false;
};
ACCELERATE_STRUCT(CPUOffload, offload_params)
/// Version 2: they stay on the device ...
struct OffloadPolicy {};
ACCELERATE_STRUCT(OffloadPolicy)
/// ... or are on the host, where gradients and the optimizer are as well.
struct CPUOffloadPolicy {
  bool pin_memory = true;
};
ACCELERATE_STRUCT(CPUOffloadPolicy, pin_memory)

using OptionalDtype = std::optional<c10::ScalarType>;

/// Version 1: what parameters are gathered in, gradients are reduced in and buffers are in. Absent:
/// what they have.
struct MixedPrecision {
  OptionalDtype param_dtype = std::nullopt;
  OptionalDtype reduce_dtype = std::nullopt;
  OptionalDtype buffer_dtype = std::nullopt;
  /// Gradients of shards stay in what they were reduced in, which optimizers must take.
  bool keep_low_precision_grads = false;
  /// Either of them casts the inputs of the model; those of units inside it stay as they are.
  bool cast_forward_inputs = false;
  bool cast_root_forward_inputs = true;
};
ACCELERATE_STRUCT(MixedPrecision, param_dtype, reduce_dtype, buffer_dtype, keep_low_precision_grads,
                  cast_forward_inputs, cast_root_forward_inputs)

/// Version 2: outputs of the model have output_dtype. reduce_dtype is absent where it is
/// param_dtype, which gradients have in any case.
struct MixedPrecisionPolicy {
  OptionalDtype param_dtype = std::nullopt;
  OptionalDtype reduce_dtype = std::nullopt;
  OptionalDtype output_dtype = std::nullopt;
  /// Those of the model; those of units inside it stay as they are.
  bool cast_forward_inputs = true;
};
ACCELERATE_STRUCT(MixedPrecisionPolicy, param_dtype, reduce_dtype, output_dtype,
                  cast_forward_inputs)

struct FullStateDictConfig {
  bool offload_to_cpu = false;
  bool rank0_only = false;
};
ACCELERATE_STRUCT(FullStateDictConfig, offload_to_cpu, rank0_only)
struct LocalStateDictConfig {
  bool offload_to_cpu = false;
};
ACCELERATE_STRUCT(LocalStateDictConfig, offload_to_cpu)
struct ShardedStateDictConfig {
  bool offload_to_cpu = false;
};
ACCELERATE_STRUCT(ShardedStateDictConfig, offload_to_cpu)
struct FullOptimStateDictConfig {
  bool offload_to_cpu = true;
  bool rank0_only = false;
};
ACCELERATE_STRUCT(FullOptimStateDictConfig, offload_to_cpu, rank0_only)
struct LocalOptimStateDictConfig {
  bool offload_to_cpu = false;
};
ACCELERATE_STRUCT(LocalOptimStateDictConfig, offload_to_cpu)
struct ShardedOptimStateDictConfig {
  bool offload_to_cpu = true;
};
ACCELERATE_STRUCT(ShardedOptimStateDictConfig, offload_to_cpu)
using StateDictConfig =
    std::variant<FullStateDictConfig, LocalStateDictConfig, ShardedStateDictConfig>;
using OptimStateDictConfig =
    std::variant<FullOptimStateDictConfig, LocalOptimStateDictConfig, ShardedOptimStateDictConfig>;

/// The precision of either version, for the engine.
struct ShardPrecision {
  OptionalDtype param_dtype = std::nullopt;
  OptionalDtype reduce_dtype = std::nullopt;
  OptionalDtype buffer_dtype = std::nullopt;
  OptionalDtype output_dtype = std::nullopt;
  /// Whether floating-point inputs of the model are cast to param_dtype.
  bool cast_inputs = true;
  /// Whether gradients of shards stay in reduce_dtype, or param_dtype.
  bool keep_low_precision_grads = false;
  bool operator==(const ShardPrecision&) const = default;
};

/// Whether a module becomes a unit of its own.
using ModulePolicy = std::function<bool(const torch::nn::Module& module)>;

struct FullyShardedDataParallelPlugin {
  /// 1 or 2: 1. FSDP_VERSION
  std::optional<int64_t> fsdp_version = std::nullopt;

  /// Deprecated. FULL_SHARD; absent in version 2, where FULL_SHARD and HYBRID_SHARD stand for
  /// reshard_after_forward=true, and the others for false, unless that is given.
  /// Resolved: a member. FSDP_SHARDING_STRATEGY, which version 2 does not read.
  std::optional<EnumChoice<ShardingStrategy>> sharding_strategy = std::nullopt;

  /// Version 2: whether parameters are freed after the forward pass and gathered again in the
  /// backward pass: true. A number, which divides that of the ranks that share the model: from the
  /// forward to the backward pass they are sharded over so many neighbours, such as a node's, and
  /// gathered from these; 1 is false. FSDP_RESHARD_AFTER_FORWARD, where 0 and 1 are truth values.
  /// Resolved: a bool, or a number above 1.
  /// Version 1: a strategy, in place of sharding_strategy where that is absent; resolved: a member.
  std::optional<std::variant<bool, ShardingStrategy, int64_t, std::string>> reshard_after_forward =
      std::nullopt;

  /// Version 1. "NO_PREFETCH" and absent: nothing is gathered ahead in a backward pass. Version 2
  /// always gathers ahead, and drops it with a warning. FSDP_BACKWARD_PREFETCH. Resolved: a member.
  std::optional<EnumChoice<BackwardPrefetch>> backward_prefetch = std::nullopt;

  /// "fp16", "bf16", "fp32" or "fp8", which is bf16 here; a map with the keys param_dtype,
  /// reduce_dtype and, by version, buffer_dtype or output_dtype; or the version's struct. Absent:
  /// the job's mixed_precision. Resolved: the version's struct.
  std::optional<std::variant<std::string, std::map<std::string, c10::ScalarType>, MixedPrecision,
                             MixedPrecisionPolicy>>
      mixed_precision_policy = std::nullopt;

  /// The units of sharding: a member, its name, or a function: NO_WRAP. FSDP_AUTO_WRAP_POLICY.
  /// Resolved: absent for NO_WRAP; a member or a function.
  std::optional<std::variant<AutoWrapPolicy, std::string, ModulePolicy>> auto_wrap_policy =
      std::nullopt;

  /// false. FSDP_OFFLOAD_PARAMS. Resolved: the version's struct.
  std::optional<std::variant<bool, CPUOffload, OffloadPolicy, CPUOffloadPolicy>> cpu_offload =
      std::nullopt;

  /// Modules that are on the device whole, and are neither sharded nor reduced: themselves, or a
  /// regular expression that matches the whole of their names. FSDP_IGNORED_MODULES
  std::optional<std::variant<std::vector<std::shared_ptr<torch::nn::Module>>, std::string>>
      ignored_modules = std::nullopt;

  /// FULL_STATE_DICT in version 1, SHARDED_STATE_DICT in 2, which has no LOCAL_STATE_DICT.
  /// FSDP_STATE_DICT_TYPE. Resolved: a member.
  std::optional<EnumChoice<StateDictType>> state_dict_type = std::nullopt;
  /// By state_dict_type: whole on rank 0's host, or the ranks' shards on their hosts.
  /// A FullStateDictConfig is where Accelerator::get_state_dict leaves whole tensors: on every rank
  /// without rank0_only, on its device without offload_to_cpu. What is written to files depends on
  /// neither configuration, nor does where it is until then; rank 0 warns of another
  /// optim_state_dict_config.
  std::optional<StateDictConfig> state_dict_config = std::nullopt;
  std::optional<OptimStateDictConfig> optim_state_dict_config = std::nullopt;

  /// No effect: two groups are on their way or in use at most, also where it is false, of which
  /// rank 0 warns.
  bool limit_all_gathers = true;

  /// Version 1: whether optimizers may have groups of parameters and units frozen parameters:
  /// false. Version 2 always allows it, and drops the field with a warning. FSDP_USE_ORIG_PARAMS
  std::optional<bool> use_orig_params = std::nullopt;

  /// Gives a module's own tensors on "meta" values. Absent: as the recorded construction does
  /// (init_empty_weights).
  std::function<void(torch::nn::Module& module)> param_init_fn = nullptr;

  /// Version 1: false. Ranks begin with rank 0's values in any case; where it is true, the others
  /// need no values of their own before. Version 2 drops it with a warning. FSDP_SYNC_MODULE_STATES
  std::optional<bool> sync_module_states = std::nullopt;

  /// Version 1: false, without effect: the next unit is gathered ahead in forward passes in any
  /// case. In version 2 true is an error. FSDP_FORWARD_PREFETCH
  std::optional<bool> forward_prefetch = std::nullopt;

  /// What accelerate::block() runs is computed again in the backward pass: false.
  /// FSDP_ACTIVATION_CHECKPOINTING
  std::optional<bool> activation_checkpointing = std::nullopt;

  /// Version 2, with activation_checkpointing: the inputs of what is computed again are in host
  /// memory, pinned, until the backward pass needs them: false.
  /// FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD
  std::optional<bool> activation_checkpointing_offload = std::nullopt;

  /// Only rank 0 needs the values of the model before it is prepared: false. In version 1 it turns
  /// sync_module_states on, with a warning. FSDP_CPU_RAM_EFFICIENT_LOADING, which resolve() sets
  /// where the field is given.
  std::optional<bool> cpu_ram_efficient_loading = std::nullopt;

  /// TRANSFORMER_BASED_WRAP: the classes, as module_class_name() has them. Absent:
  /// ModelStructure::no_split_modules(). FSDP_TRANSFORMER_CLS_TO_WRAP, separated by commas.
  std::optional<std::vector<std::string>> transformer_cls_names_to_wrap = std::nullopt;

  /// SIZE_BASED_WRAP: a unit has at least as many parameters in version 1, and more in version 2;
  /// 0: no units. FSDP_MIN_NUM_PARAMS
  std::optional<int64_t> min_num_params = std::nullopt;

  /// What resolve() returns says so; resolving it again changes nothing.
  bool is_resolved = false;

  // ---- Of a resolved plugin.

  int version() const;
  /// The strategy of either version; reshard_after_forward is kFullShard or kShardGradOp.
  ShardingStrategy strategy() const;
  /// Whether units are freed after the forward pass.
  bool reshards_after_forward() const;
  /// Over how many ranks parameters are sharded then; absent: all that share the model.
  std::optional<int64_t> ranks_after_forward() const;
  bool offloads_parameters() const;
  /// Whether offloaded parameters are in memory that is pinned.
  bool pins_memory() const;
  /// Nothing but absent dtypes before set_mixed_precision where the field is absent.
  ShardPrecision precision() const;
  StateDictType state_type() const;

  /// Another type from now on, as for a whole checkpoint at the end. Configurations of the type
  /// before stay as they are; absent ones are filled in.
  void set_state_dict_type(std::optional<EnumChoice<StateDictType>> type = std::nullopt);

  /// Looks the classes up in the model. Afterwards transformer_cls_names_to_wrap is there for
  /// TRANSFORMER_BASED_WRAP, and SIZE_BASED_WRAP with min_num_params = 0 stands for none.
  /// Errors: also c10::ValueError for a class that the model does not have.
  void set_auto_wrap_policy(const torch::nn::Module& model);

  /// The policy of a precision, "fp16", "bf16", "fp32" or "fp8"; `buffer_autocast` keeps version
  /// 1's buffers in float32. A policy that is there stays, unless `override`.
  void set_mixed_precision(const std::string& mixed_precision, bool buffer_autocast = false,
                           bool override = false);
  void set_mixed_precision(c10::ScalarType dtype, bool buffer_autocast = false,
                           bool override = false);
  /// That the policy is there and of the version.
  void validate_mixed_precision_policy() const;

  /// true and false as the version's struct.
  void set_cpu_offload();
  /// That cpu_offload is of the version.
  void validate_cpu_offload() const;
};

ACCELERATE_FIELDS(FullyShardedDataParallelPlugin, fsdp_version, sharding_strategy,
                  reshard_after_forward, backward_prefetch, mixed_precision_policy,
                  auto_wrap_policy, cpu_offload, ignored_modules, state_dict_type,
                  state_dict_config, optim_state_dict_config, limit_all_gathers, use_orig_params,
                  param_init_fn, sync_module_states, forward_prefetch, activation_checkpointing,
                  activation_checkpointing_offload, cpu_ram_efficient_loading,
                  transformer_cls_names_to_wrap, min_num_params)

/// With every field that has a default or a variable filled in, and checked. Warns once of fields
/// that version 2 does not need. Local.
FullyShardedDataParallelPlugin resolve(FullyShardedDataParallelPlugin plugin,
                                       Environment& environment);

/// Its fields as a line for people, without functions and modules.
std::string to_text(const FullyShardedDataParallelPlugin& plugin);

/// The first module of that class in the model, itself included, in the order of a walk; null for
/// none. Mirrors: get_module_class_from_name, which returns the class.
const torch::nn::Module* get_module_class_from_name(const torch::nn::Module& module,
                                                    const std::string& name);

/// Only rank 0 loads weights from now on: sets FSDP_CPU_RAM_EFFICIENT_LOADING, and
/// ACCELERATE_USE_FSDP where it is unset.
void enable_fsdp_ram_efficient_loading(Environment& environment);
/// Every rank does.
void disable_fsdp_ram_efficient_loading(Environment& environment);

/// How a state dict is made or taken. Mirrors: torch.distributed.checkpoint.state_dict.
struct StateDictOptions {
  bool full_state_dict = false;
  bool cpu_offload = false;
  bool ignore_frozen_params = false;
  bool keep_submodule_prefixes = true;
  bool strict = true;
  bool broadcast_from_rank0 = false;
  bool flatten_optimizer_state_dict = false;
};
ACCELERATE_STRUCT(StateDictOptions, full_state_dict, cpu_offload, ignore_frozen_params,
                  keep_submodule_prefixes, strict, broadcast_from_rank0,
                  flatten_optimizer_state_dict)
/// What the plugin says of it; nothing for version 1. Mirrors: fsdp_utils.py, _prepare_sd_options.
std::optional<StateDictOptions> state_dict_options(const FullyShardedDataParallelPlugin& plugin);

}  // namespace accelerate
