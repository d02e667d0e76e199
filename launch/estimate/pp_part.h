/// What the ranks along pp have of a model: stages of neighbouring blocks.
///
/// Parts are what is before the blocks, as embeddings, each block, and what is behind them; stages
/// have as many parts each as can be (accelerate/pipeline/partition.h), as with a PipelinePlan that
/// says nothing else.
/// Errors:  InvalidArgument for more stages than parts, with the most that there can be.
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "launch/estimate/architecture.h"

namespace accelerate::launcher::estimate {

/// How many of a model's blocks each of `ranks` stages has.
absl::StatusOr<std::vector<int64_t>> blocks_of_stages(int64_t blocks, int64_t ranks);

/// What each stage has of the model's tensors. Blocks are the modules with numbers, as "layers.3",
/// in the list that has most elements; what else there is stands before them if its name is that
/// of an embedding, and behind them otherwise. A tied tensor is in each stage that has one of its
/// names. Errors: also for a model without numbered blocks.
absl::StatusOr<std::vector<Architecture>> pp_parts(const Architecture& architecture, int64_t ranks);

}  // namespace accelerate::launcher::estimate
