/// What an Accelerator tells the state that all Accelerators of a Runtime share.
///
/// Threads: values.
#pragma once

#include <memory>
#include <optional>

#include "accelerate/base/enums.h"
#include "accelerate/config/deepspeed_plugin.h"
#include "accelerate/config/dynamo_plugin.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/config/parallelism_config.h"

namespace accelerate {

struct FullyShardedDataParallelPlugin;
struct MegatronLMPlugin;

struct AcceleratorStateOptions {
  /// Absent: ACCELERATE_MIXED_PRECISION, or the precision of an earlier Accelerator, or none.
  std::optional<PrecisionType> mixed_precision = std::nullopt;
  /// Compute on the CPU even if the Runtime has accelerators.
  bool cpu = false;
  std::optional<InitProcessGroupKwargs> init = std::nullopt;
  /// Absent: that of an earlier Accelerator, or none.
  std::optional<ParallelismConfig> parallelism_config = std::nullopt;
  /// Resolved. Null: that of an earlier Accelerator, or none.
  std::shared_ptr<const FullyShardedDataParallelPlugin> fsdp_plugin = nullptr;
  /// Resolved. Empty: those of an earlier Accelerator, or none.
  DeepSpeedPlugins deepspeed_plugins = {};
  /// Resolved, and parallelism_config is its mesh. Null: that of an earlier Accelerator, or none.
  std::shared_ptr<const MegatronLMPlugin> megatron_lm_plugin = nullptr;
  /// Resolved. Absent: that of an earlier Accelerator, or one that compiles nothing.
  std::optional<TorchDynamoPlugin> dynamo_plugin = std::nullopt;
};

}  // namespace accelerate
