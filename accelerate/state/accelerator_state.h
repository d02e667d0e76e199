/// The settings that all Accelerators of a Runtime share, beside the rank's place in the job.
///
/// Errors:  c10::ValueError before the first Accelerator, and between reset() and the next.
/// Threads: belongs to its rank's thread.
/// Mirrors: accelerate state.py, AcceleratorState.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include "accelerate/base/enums.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/dynamo_plugin.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/mesh/roles.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/state/partial_state.h"

namespace accelerate {

struct FullyShardedDataParallelPlugin;
struct MegatronLMPlugin;

namespace internal {
// Arranges ranks for tests of what no engine asks for yet.
struct ArrangedRanks;
}  // namespace internal

/// What an Accelerator tells the state.
struct AcceleratorStateOptions {
  /// Absent: ACCELERATE_MIXED_PRECISION, or the precision of an earlier Accelerator, or none.
  std::optional<PrecisionType> mixed_precision = std::nullopt;
  /// Compute on the CPU even if the Runtime has accelerators.
  bool cpu = false;
  std::optional<InitProcessGroupKwargs> init = std::nullopt;
  /// Absent: that of an earlier Accelerator, or none.
  std::optional<ParallelismConfig> parallelism_config = std::nullopt;
  /// Resolved. Null: that of an earlier Accelerator, or none.
  const FullyShardedDataParallelPlugin* fsdp_plugin = nullptr;
  /// Resolved. Empty: those of an earlier Accelerator, or none.
  DeepSpeedPlugins deepspeed_plugins = {};
  /// Resolved, and parallelism_config is its mesh. Null: that of an earlier Accelerator, or none.
  const MegatronLMPlugin* megatron_lm_plugin = nullptr;
  /// Resolved. Absent: that of an earlier Accelerator, or one that compiles nothing.
  std::optional<TorchDynamoPlugin> dynamo_plugin = std::nullopt;
};

/// PartialState, and the settings that all Accelerators of a Runtime share. The first Accelerator
/// makes it; other code may only read it.
class AcceleratorState : public ProcessControl<AcceleratorState> {
 public:
  /// The Runtime's state. Local. Errors: c10::ValueError before the first Accelerator.
  static AcceleratorState& get(Runtime& runtime = Runtime::current());

  /// The same, or null where there is none.
  static AcceleratorState* find(const Runtime& runtime = Runtime::current());

  /// Forgets the settings and, with `reset_partial_state`, the rank's place in the job. Every rank
  /// calls it. Local.
  static void reset(Runtime& runtime = Runtime::current(), bool reset_partial_state = false);

  AcceleratorState(const AcceleratorState&) = delete;
  AcceleratorState& operator=(const AcceleratorState&) = delete;

  bool initialized() const { return record_.has_value(); }

  /// How often the state was made. When it changes, other state that Accelerators share is reset.
  int generation() const { return generation_; }

  /// The number format that models compute in; with a deepspeed_plugin, the one of its
  /// configuration.
  PrecisionType mixed_precision() const;

  /// How ranks are arranged; absent where no Accelerator was told.
  const std::optional<ParallelismConfig>& parallelism_config() const {
    return record().parallelism_config;
  }
  /// The options of sharded training, resolved and with the job's precision; null without them.
  /// What a program changes in them holds for models that are prepared and states that are saved
  /// from then on.
  FullyShardedDataParallelPlugin* fsdp_plugin() const { return record().fsdp_plugin.get(); }
  /// How models are compiled, resolved.
  const TorchDynamoPlugin& dynamo_plugin() const { return record().dynamo_plugin; }
  /// The options of ZeRO: those of the selected plugin, resolved and with the job's precision; null
  /// without any.
  DeepSpeedPlugin* deepspeed_plugin() const;
  /// The one of that name; a plugin that was given without a name is called "".
  /// Errors: c10::ValueError listing the names there are.
  DeepSpeedPlugin& get_deepspeed_plugin(const std::string& name) const;
  /// Models are prepared by this plugin from now on, and by no other. Errors: as before; then the
  /// selection stays.
  void select_deepspeed_plugin(const std::string& name);
  /// All of them, in the order in which they were given.
  std::vector<std::string> deepspeed_plugin_names() const;
  /// The options of training in the manner of Megatron-LM, resolved and with the job's precision;
  /// null without them. prepare_megatron_lm adds what it finds out of the objects.
  MegatronLMPlugin* megatron_lm_plugin() const { return record().megatron_lm_plugin.get(); }
  /// Whether models are sharded as by FSDP 2: its plugin's version is 2, or the parallelism_config
  /// divides them by shards without a plugin.
  bool is_fsdp2() const;
  /// The arranged ranks: as the configuration says, or the shards and replicas of the fsdp_plugin's
  /// strategy. Null without both, where no axis has several ranks, and once the process group is
  /// destroyed.
  const DeviceMesh* device_mesh() const { return record().device_mesh.get(); }
  /// The same arithmetic for every job: that of device_mesh(), or all ranks as replicas.
  Mesh mesh() const;
  /// This rank's share of the data: that of the mesh, or one share for each rank.
  DataShare data_share() const;
  /// The ranks that have parts of the same sequences, along cp or sp; null for one.
  ProcessGroupPtr sequence_group() const;
  /// What this rank's groups are for; see rank_roles. They are made once for the axes in `divides`.
  RankRoles roles(AxisSet divides = {}) const;

  /// The rank's place in the job; the most used parts are repeated below.
  PartialState& partial_state() const {
    record();
    return partial_state_;
  }
  Runtime& runtime() const { return partial_state_.runtime(); }
  c10::Device device() const { return partial_state().device(); }
  /// PartialState's, which follows the devices; kFsdp where several ranks have an fsdp_plugin or
  /// the parallelism_config divides models by shards; kDeepSpeed with a deepspeed_plugin;
  /// kMegatronLm where several ranks have a megatron_lm_plugin. The devices' kind is
  /// `runtime().device_family()`.
  DistributedType distributed_type() const { return record().distributed_type; }
  const std::string& backend() const { return partial_state().backend(); }
  bool debug() const { return partial_state().debug(); }
  bool fork_launched() const { return partial_state().fork_launched(); }
  int process_index() const { return partial_state().process_index(); }
  int local_process_index() const { return partial_state().local_process_index(); }
  int num_processes() const { return partial_state().num_processes(); }
  bool is_main_process() const { return partial_state().is_main_process(); }
  bool is_local_main_process() const { return partial_state().is_local_main_process(); }
  bool is_last_process() const { return partial_state().is_last_process(); }
  bool use_distributed() const { return partial_state().use_distributed(); }
  const ProcessGroupPtr& group() const { return partial_state().group(); }

  /// As PartialState's; the job's group goes together with those of the mesh.
  void destroy_process_group(ProcessGroupPtr group = nullptr);

  /// Several lines for people: the rank's place in the job and the settings.
  std::string to_string() const;

 private:
  friend class Accelerator;
  friend struct internal::ArrangedRanks;

  // Makes the state, or checks that the options agree with it. Collective where it makes the
  // process group. Errors: c10::ValueError naming the option that contradicts an earlier
  // Accelerator's.
  static AcceleratorState& initialize(Runtime& runtime, const AcceleratorStateOptions& options);

  // The part of the state that a reset forgets.
  struct Record {
    PrecisionType mixed_precision = PrecisionType::kNo;
    DistributedType distributed_type = DistributedType::kNo;
    std::optional<ParallelismConfig> requested;  // as the first Accelerator had it
    std::optional<ParallelismConfig> parallelism_config;
    std::string requested_fsdp;  // as the first Accelerator had it
    std::shared_ptr<FullyShardedDataParallelPlugin> fsdp_plugin;
    std::string requested_deepspeed;  // as the first Accelerator had it
    mutable DeepSpeedPlugins deepspeed_plugins;
    std::string requested_megatron;  // as the first Accelerator had it
    std::shared_ptr<MegatronLMPlugin> megatron_lm_plugin;
    TorchDynamoPlugin dynamo_plugin = {.backend = DynamoBackend::kNo};
    std::unique_ptr<const DeviceMesh> device_mesh;
    // With a mesh, by what techniques divide.
    mutable std::vector<std::pair<AxisSet, RankRoles>> roles;
  };

  explicit AcceleratorState(PartialState& partial_state) : partial_state_(partial_state) {}
  static Record make_record(const PartialState& partial_state,
                            const AcceleratorStateOptions& options);
  static void apply_deepspeed_config(Record& record, const PartialState& partial_state,
                                     const AcceleratorStateOptions& options);
  static void apply_megatron(Record& record, const PartialState& partial_state,
                             const AcceleratorStateOptions& options);
  void check_agrees(const AcceleratorStateOptions& options) const;
  const Record& record() const {
    TORCH_CHECK_VALUE(record_, "this rank's Accelerators were reset; make one before it is asked");
    return *record_;
  }

  PartialState& partial_state_;
  std::optional<Record> record_;
  int generation_ = 0;
};

/// The value of ACCELERATE_MIXED_PRECISION; absent if it is unset or empty. Local.
/// Errors: c10::ValueError for an unknown precision.
std::optional<PrecisionType> mixed_precision_from_env(const Environment& environment);

/// The plugin by which models are prepared. Local.
/// Errors: c10::ValueError where there is none.
/// Mirrors: accelerate utils/deepspeed.py, get_active_deepspeed_plugin.
DeepSpeedPlugin& get_active_deepspeed_plugin(
    const AcceleratorState& state = AcceleratorState::get());

}  // namespace accelerate
