/// Names of the files that the library writes and reads, and the values that options given as text
/// may have.
///
/// In a pattern, "{suffix}" distinguishes files of one kind; see with_suffix.
/// Mirrors: accelerate utils/constants.py; HF Accelerate's name stands beside each.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace accelerate {

// ---- Accelerator::save_state: the files' names without number, rank and extension.

inline constexpr char kSafeModelName[] = "model";         ///< SAFE_MODEL_NAME
inline constexpr char kOptimizerName[] = "optimizer";     ///< OPTIMIZER_NAME
inline constexpr char kSchedulerName[] = "scheduler";     ///< SCHEDULER_NAME
inline constexpr char kRngStateName[] = "random_states";  ///< RNG_STATE_NAME
/// SCALER_NAME, which is "scaler.pt" in HF Accelerate: it pickles what is JSON here.
inline constexpr char kScalerName[] = "scaler";

// ---- Accelerator::profile.

inline constexpr char kProfilePatternName[] = "profile_{suffix}.json";  ///< PROFILE_PATTERN_NAME

// ---- Accelerator::save_model.

inline constexpr char kSafeWeightsName[] = "model.safetensors";  ///< SAFE_WEIGHTS_NAME
/// SAFE_WEIGHTS_PATTERN_NAME
inline constexpr char kSafeWeightsPatternName[] = "model{suffix}.safetensors";
/// SAFE_WEIGHTS_INDEX_NAME
inline constexpr char kSafeWeightsIndexName[] = "model.safetensors.index.json";
/// WEIGHTS_NAME: weights of torch.save, which are read and not written.
inline constexpr char kWeightsName[] = "pytorch_model.bin";

// ---- Sharded training.

inline constexpr char kFsdpModelName[] = "pytorch_model_fsdp";  ///< FSDP_MODEL_NAME
/// FSDP_SHARDING_STRATEGY
inline constexpr auto kFsdpShardingStrategy = std::to_array<std::string_view>(
    {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"});
/// FSDP_AUTO_WRAP_POLICY
inline constexpr auto kFsdpAutoWrapPolicy =
    std::to_array<std::string_view>({"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"});
/// FSDP_BACKWARD_PREFETCH
inline constexpr auto kFsdpBackwardPrefetch =
    std::to_array<std::string_view>({"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"});
/// FSDP_STATE_DICT_TYPE
inline constexpr auto kFsdpStateDictType =
    std::to_array<std::string_view>({"FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"});
/// FSDP2_STATE_DICT_TYPE
inline constexpr auto kFsdp2StateDictType =
    std::to_array<std::string_view>({"SHARDED_STATE_DICT", "FULL_STATE_DICT"});
/// DEEPSPEED_MULTINODE_LAUNCHERS
inline constexpr auto kDeepSpeedMultinodeLaunchers = std::to_array<std::string_view>(
    {"pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm"});

// ---- Compiling.

/// TORCH_DYNAMO_MODES
inline constexpr auto kTorchDynamoModes =
    std::to_array<std::string_view>({"default", "reduce-overhead", "max-autotune"});

/// The pattern with `suffix` in its place: ("profile_{suffix}.json", "3") gives "profile_3.json".
inline std::string with_suffix(std::string_view pattern, std::string_view suffix) {
  constexpr std::string_view kPlace = "{suffix}";
  std::string name(pattern);
  const size_t place = name.find(kPlace);
  if (place != std::string::npos) name.replace(place, kPlace.size(), suffix);
  return name;
}

}  // namespace accelerate
