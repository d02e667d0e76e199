/// A model's weights as a folder of safetensors files that others read.
///
/// `model.safetensors`, or shards with an index, if the weights are larger than `max_shard_size`.
///
/// A save may be interrupted anywhere: the folder then holds the old weights or the new ones,
/// complete (see replace_weights). What is left of earlier saves is removed last. Other files, such
/// as `pytorch_model.bin`, stay.
///
/// Errors:  c10::ValueError for a directory that is a file, tensors on the meta device (naming
///          them), and a size that cannot be parsed; CheckpointError if the disk fails.
/// Threads: any; one at a time for a folder, without readers meanwhile.
/// Mirrors: Accelerator.save_model, save_torch_state_dict and clean_state_dict_for_safetensors.
/// Differs: partial views and empty tensors are saved, with all that are not identical; a model
///          without tensors is a file; pickle is never written.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "accelerate/platform/file_system.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

struct SaveModelOptions {
  /// Bytes, or a text (see parse_shard_size).
  std::variant<int64_t, std::string> max_shard_size = "10GB";
  /// False has no effect but one warning: pickle is never written.
  bool safe_serialization = true;
};

/// Local, for one rank. The folder is made where there is none.
void save_model(FileSystem& files, const NamedTensors& state, const std::string& directory,
                const SaveModelOptions& options = {});

/// Keeps the first of those tensors that are the same elements of the same memory; a warning names
/// the others. Local.
NamedTensors clean_state_dict_for_safetensors(const NamedTensors& state);

namespace internal {

/// Warns once per Runtime that pickle is not written, if it was asked for.
void warn_of_unsafe_serialization(bool safe_serialization);

}  // namespace internal

struct MergeFsdpWeightsOptions {
  /// False has no effect but one warning: pickle is never written.
  bool safe_serialization = true;
  /// Removes what was merged, once that is complete.
  bool remove_checkpoint_dir = false;
};

/// Makes `output_path`/model.safetensors of a checkpoint in shards: the main process runs
/// merge_weights, and all ranks return or throw together. Collective.
/// Errors:  CheckpointError on all ranks; see merge_weights.h.
/// Threads: the rank's thread.
/// Mirrors: accelerate utils/fsdp_utils.py, merge_fsdp_weights.
void merge_fsdp_weights(const std::string& checkpoint_dir, const std::string& output_path,
                        const MergeFsdpWeightsOptions& options = {},
                        Runtime& runtime = Runtime::current());

}  // namespace accelerate
