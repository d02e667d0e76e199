/// One prepared model or optimizer, saved and loaded by itself in the forms of FSDP.
///
///   SHARDED_STATE_DICT   pytorch_model_fsdp_0/, optimizer_0/: what ranks divide, as in a
///   checkpoint
///                        (sharded_parts.h), with a manifest of its own. Any layout loads it
///   FULL_STATE_DICT      pytorch_model_fsdp.safetensors, optimizer.safetensors: whole tensors,
///                        gathered one by one. Any layout loads it
///   LOCAL_STATE_DICT     pytorch_model_fsdp_rank3.safetensors: each rank's part as it is, for the
///                        same layout; an optimizer is saved as SHARDED_STATE_DICT
///   SHARDED_STATE_DICT without DCP
///                        pytorch_model_fsdp_0_rank3.safetensors, optimizer_0_rank3.safetensors:
///                        likewise
///
/// The second object of a kind has the number 1: pytorch_model_fsdp_1.safetensors.
/// What is there in several forms loads in that of the options. An object also loads out of a
/// checkpoint of save_state, and out of the very folder that its shards are in.
/// Collective. Errors: on all ranks, naming those that failed, c10::ValueError if there is nothing
///             to load, or it is another object's or layout's; CheckpointError naming the file that
///             is missing or damaged, or could not be written.
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "accelerate/base/enums.h"

namespace accelerate {

class ModelState;
class StateSaver;

namespace internal {

struct SharedOptimizer;

struct FsdpObjectOptions {
  StateDictType state_dict_type = StateDictType::kShardedStateDict;
  int64_t index = 0;
  /// A model's tensors that are saved, or read; the others keep what they have. Null: all.
  std::function<bool(const std::string& name)> wanted = nullptr;
  bool use_dcp = true;
};

void save_fsdp_model(StateSaver& saver, const std::shared_ptr<ModelState>& model,
                     const std::string& output_dir, const FsdpObjectOptions& options);
void load_fsdp_model(StateSaver& saver, const std::shared_ptr<ModelState>& model,
                     const std::string& input_dir, const FsdpObjectOptions& options);

/// `model`: the one that the optimizer trains, whose names its state is saved by.
void save_fsdp_optimizer(StateSaver& saver, SharedOptimizer& optimizer,
                         const std::shared_ptr<ModelState>& model, const std::string& output_dir,
                         const FsdpObjectOptions& options);
void load_fsdp_optimizer(StateSaver& saver, SharedOptimizer& optimizer,
                         const std::shared_ptr<ModelState>& model, const std::string& input_dir,
                         const FsdpObjectOptions& options);

}  // namespace internal
}  // namespace accelerate
