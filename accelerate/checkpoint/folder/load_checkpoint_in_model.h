/// Loads weights from files into a module, straight into its tensors.
///
/// A checkpoint is a file, an index or a folder (see find_weight_files); its files are safetensors
/// or torch.save zips. All names and sizes are first compared with the index and the module; if
/// that fails, the module is unchanged. Memory beyond the module's: a buffer with safetensors, a
/// whole file with torch.save zips.
///
/// Errors:  CheckpointError, naming the file, for a checkpoint that is damaged, incomplete or does
///          not fit (see load_module_state_dict), and if the disk fails, when some tensors may have
///          been read already; c10::ValueError for a name with nothing or several
///          candidates to load, and for invalid options.
/// Threads: the rank's thread.
/// Mirrors: accelerate utils/modeling.py, load_checkpoint_in_model and load_state_dict.
#pragma once

#include <optional>
#include <string>

#include <c10/core/ScalarType.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/checkpoint/objects/module_state_dict.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/tensors/state_dict.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate {

struct LoadCheckpointInModelOptions {
  /// The new dtype of the module's floating tensors that are in the checkpoint.
  std::optional<c10::ScalarType> dtype;
  /// Whether missing and unexpected names are errors. Other sizes always are.
  bool strict = false;
  /// Only rank 0 reads; the others get each tensor from it, without more memory than their own.
  /// All must have models of the same names, sizes and dtypes.
  bool broadcast_from_rank0 = false;
  /// The ranks of broadcast_from_rank0; null for one rank alone.
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
};

/// Local; collective with broadcast_from_rank0, when all ranks throw an error of any rank.
IncompatibleKeys load_checkpoint_in_model(FileSystem& files, torch::nn::Module& model,
                                          const std::string& checkpoint,
                                          const LoadCheckpointInModelOptions& options = {});

/// The tensors of one file, on the CPU. Local.
NamedTensors load_state_dict(FileSystem& files, const std::string& checkpoint_file);

}  // namespace accelerate
