/// `accelerate merge-weights CHECKPOINT_DIR OUTPUT_PATH`: whole weights of a sharded checkpoint.
///
/// See accelerate/checkpoint/formats/merge_weights.h.
/// Mirrors: accelerate commands/merge.py.
/// Differs: safetensors are written whatever `--unsafe_serialization` says.
#pragma once

#include "launch/commands/command.h"

namespace accelerate::launch::commands {

extern const Command kMergeWeights;

}  // namespace accelerate::launch::commands
