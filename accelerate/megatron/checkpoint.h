/// Weights in checkpoints of Megatron-LM's format "torch": a file for each rank along tp and pp.
///
///     const NamedTensors whole = read_megatron_checkpoint(files, "run/saved", shape, {.tp = 2});
///     const NamedTensors tensors = hf_from_megatron(whole, shape);
///
/// A file's "model" is read, and nothing of the file is executed. Optimizers, random states and the
/// job's arguments are left out. Not read are distributed checkpoints ("torch_dist", "zarr"), files
/// of stages with several chunks of layers, files of ranks along ep, and models from before
/// Megatron-Core.
///
/// Threads: any.
/// Source:  Megatron-LM, megatron/training/checkpointing.py
#pragma once

#include <string>

#include "accelerate/megatron/weights.h"
#include "accelerate/platform/file_system.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

/// The whole model under Megatron-Core's names. `folder`: of one iteration, or of all iterations,
/// whose latest_checkpointed_iteration.txt names one. `division`: of the job that saved it, with
/// one chunk. Local.
/// Errors: CheckpointError naming the file or folder, if it is missing, damaged, or of a format
///         that is not read; c10::ValueError for a division with several chunks; those of
///         join_megatron.
NamedTensors read_megatron_checkpoint(FileSystem& files, const std::string& folder,
                                      const MegatronModelShape& shape,
                                      const MegatronDivision& division);

}  // namespace accelerate
