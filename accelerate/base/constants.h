/// Names of the files that the library writes and reads.
///
/// In a pattern, "{suffix}" distinguishes files of one kind; see with_suffix.
/// Mirrors: accelerate utils/constants.py; HF Accelerate's name stands beside each.
#pragma once

#include <string>

#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

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

/// The pattern with `suffix` in its place: ("profile_{suffix}.json", "3") gives "profile_3.json".
inline std::string with_suffix(absl::string_view pattern, absl::string_view suffix) {
  return absl::StrReplaceAll(pattern, {{"{suffix}", suffix}});
}

}  // namespace accelerate
