/// The arguments of the Accelerator's constructor and of its methods that prepare objects.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "accelerate/base/enums.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/dynamo_plugin.h"
#include "accelerate/config/fsdp_plugin.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/config/megatron_lm_plugin.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/data/data_loader_options.h"
#include "accelerate/optim/accelerated_scheduler.h"
#include "accelerate/tracking/tracker.h"

namespace accelerate {

class Runtime;

struct AcceleratorOptions {
  /// Move prepared models and their batches to the device.
  bool device_placement = true;
  /// What prepared models compute in. Absent: ACCELERATE_MIXED_PRECISION, or the precision of an
  /// earlier Accelerator on the Runtime, or none.
  std::optional<PrecisionType> mixed_precision = std::nullopt;
  /// Backward passes per optimizer step: 1, or what an earlier Accelerator on the Runtime set.
  /// ACCELERATE_GRADIENT_ACCUMULATION_STEPS overrides it.
  std::optional<int64_t> gradient_accumulation_steps = std::nullopt;
  /// All settings of gradient accumulation, instead of gradient_accumulation_steps. The environment
  /// does not override it.
  std::optional<GradientAccumulationPlugin> gradient_accumulation_plugin = std::nullopt;
  /// Compute on the CPU even if there are accelerators. ACCELERATE_USE_CPU=true does the same.
  bool cpu = false;
  /// `split_batches` can be given here as well; it must not contradict the configuration's.
  std::optional<bool> split_batches = std::nullopt;
  DataLoaderConfiguration dataloader_config = {};
  /// The random generators that prepared loaders set to rank 0's state at the start of each pass.
  std::vector<RNGType> rng_types = {RNGType::kGenerator};
  /// Off: prepared schedulers advance with each call of step().
  bool step_scheduler_with_optimizer = true;
  /// The unit of a prepared scheduler's step; HF Accelerate has the first one only.
  SchedulerUnit scheduler_unit = SchedulerUnit::kPerProcessBatch;
  /// The folder of checkpoints and logs; project_config has more settings. Both may name it if they
  /// agree.
  std::optional<std::string> project_dir = std::nullopt;
  ProjectConfiguration project_config = {};
  /// How ranks are arranged in a mesh. Absent: PARALLELISM_CONFIG_* where
  /// ACCELERATE_USE_PARALLELISM_CONFIG is true, or the configuration of an earlier Accelerator on
  /// the Runtime, or none.
  std::optional<ParallelismConfig> parallelism_config = std::nullopt;
  /// Ranks divide models as it says. Absent: FSDP_* where ACCELERATE_USE_FSDP is true, or that of
  /// an earlier Accelerator on the Runtime, or none. Giving one sets ACCELERATE_USE_FSDP.
  std::optional<FullyShardedDataParallelPlugin> fsdp_plugin = std::nullopt;
  /// Ranks divide models by ZeRO, as it says. Absent: ACCELERATE_DEEPSPEED_* where
  /// ACCELERATE_USE_DEEPSPEED is true, or those of an earlier Accelerator on the Runtime, or none.
  /// Giving one sets ACCELERATE_USE_DEEPSPEED.
  std::optional<DeepSpeedPlugin> deepspeed_plugin = std::nullopt;
  /// Several, by name, instead: the first one is selected, until
  /// AcceleratorState::select_deepspeed_plugin selects another one.
  DeepSpeedPlugins deepspeed_plugins = {};
  /// Ranks train in the manner of Megatron-LM, by its degrees (accelerate/prepare_megatron_lm.h).
  /// Absent: MEGATRON_LM_* where ACCELERATE_USE_MEGATRON_LM is true, or that of an earlier
  /// Accelerator on the Runtime, or none. Giving one sets ACCELERATE_USE_MEGATRON_LM.
  std::optional<MegatronLMPlugin> megatron_lm_plugin = std::nullopt;
  /// The backend that compiles models, all else as the environment says.
  std::optional<std::variant<DynamoBackend, std::string>> dynamo_backend = std::nullopt;
  /// How models are compiled, instead of dynamo_backend. Absent fields: ACCELERATE_DYNAMO_*.
  /// Without both: as the environment says, or an earlier Accelerator on the Runtime.
  std::optional<TorchDynamoPlugin> dynamo_plugin = std::nullopt;
  /// Deprecated: parallelism_config's tp_size, with a warning.
  std::optional<TorchTensorParallelPlugin> torch_tp_plugin = std::nullopt;
  /// At most one of each class.
  std::vector<KwargsHandler> kwargs_handlers = {};
  /// Trackers by name, "all", or the user's own: {"tensorboard", "jsonl"}. init_trackers starts
  /// them; their files are in project_config.logging_dir, or else in project_dir.
  std::vector<TrackerChoice> log_with = {};
};

struct PrepareOptions {
  /// One entry per object, in order; empty: the Accelerator's own setting for all.
  std::vector<bool> device_placement = {};
};

struct PrepareModelOptions {
  std::optional<bool> device_placement = std::nullopt;
  /// The model is not trained: it moves to the device, but ranks do not train it together.
  bool evaluation_mode = false;
};

namespace internal {

/// The options with what the environment adds to them: every field that an environment variable or
/// an earlier Accelerator can fill is filled. Sets the variables that plugins do. Local.
/// Errors: c10::ValueError for options that contradict each other or the environment, for axes of
///         a mesh that this version lacks or that do not divide the job, and for a precision that
///         the device lacks.
AcceleratorOptions with_environment(AcceleratorOptions options, Runtime& runtime);

/// The handlers among the options. Errors: c10::ValueError for those that contradict each other.
KwargsHandlers handlers_of(const AcceleratorOptions& options);

/// project_config, with project_dir in it. Errors: c10::ValueError if both give other folders.
ProjectConfiguration project_of(const AcceleratorOptions& options);

}  // namespace internal
}  // namespace accelerate
