/// merge_weights for a job: one rank merges, all learn how it went.
///
/// Mirrors: accelerate utils/fsdp_utils.py, merge_fsdp_weights.
/// Threads: the rank's thread.
#pragma once

#include <string>

#include "accelerate/runtime/runtime.h"

namespace accelerate {

struct MergeFsdpWeightsOptions {
  /// False is said to be without effect, once: pickle is never written.
  bool safe_serialization = true;
  /// Removes what was merged, once that is complete.
  bool remove_checkpoint_dir = false;
};

/// Makes `output_path`/model.safetensors of a checkpoint in shards. Collective.
/// Errors: CheckpointError on all ranks; see merge_weights.h.
void merge_fsdp_weights(const std::string& checkpoint_dir, const std::string& output_path,
                        const MergeFsdpWeightsOptions& options = {},
                        Runtime& runtime = Runtime::current());

}  // namespace accelerate
