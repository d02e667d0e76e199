/// Makes whole weights, or an optimizer's whole state, of a sharded checkpoint, with one buffer of
/// memory and without LibTorch.
///
/// A checkpoint is a folder with the `metadata.json` of sharded_metadata.h, an index with its
/// shards, or one file (see find_weight_files); all files are safetensors.
/// Everything is checked before anything is written. Weights are written as save_model does it, and
/// what save_state saves of an optimizer in shards becomes the file that it writes of one that is
/// not sharded, byte for byte.
///
/// Errors:  absl::Status: NotFound for a missing checkpoint, with a hint if there is one beside or
///          below it, InvalidArgument for invalid options, Unimplemented for files that PyTorch
///          pickled (torch.distributed.checkpoint's folders, torch.save's files), DataLoss naming a
///          damaged file, and the FileSystem's. The checkpoint stays then.
/// Threads: any.
/// Mirrors: accelerate utils/fsdp_utils.py, merge_fsdp_weights.
/// Differs: folders of torch.distributed.checkpoint, which are pickled, are refused; memory for the
///          whole model is not needed; errors have hints; only the files that were merged
///          are removed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "accelerate/platform/file_system.h"

namespace accelerate {

struct MergeWeightsOptions {
  /// Removes the files that were merged, and their folder if nothing else is in it, at the end.
  bool remove_checkpoint_dir = false;
  /// Bytes; larger weights become shards with an index. Unset: one file.
  std::optional<int64_t> max_shard_size;
  /// Called with the number of bytes written since the last call.
  std::function<void(int64_t)> progress;
};

struct MergedWeights {
  int64_t tensors = 0;
  int64_t bytes = 0;
  /// In the output folder.
  std::vector<std::string> files;
};

/// Local, for one rank. The output folder is made where there is none.
absl::StatusOr<MergedWeights> merge_weights(FileSystem& files, const std::string& checkpoint_dir,
                                            const std::string& output_path,
                                            const MergeWeightsOptions& options = {});

}  // namespace accelerate
