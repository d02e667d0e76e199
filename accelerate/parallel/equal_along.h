/// Whether tensors that ranks along an axis have alike, as the placements of a model say, are
/// alike.
///
/// Threads: as GradientSums.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/base/mesh_axis.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

/// Ranks along an axis.
struct RanksAlong {
  MeshAxis axis = MeshAxis::kTp;
  ProcessGroupPtr group;
  /// Their numbers in the job.
  std::vector<int> ranks;
};

/// Compares the ranks' tensors, which have the same names and sizes in the same order; `what` they
/// are in messages, as "gradients". A Runtime that sees all ranks, as the simulator's does,
/// compares them by itself (Runtime::check_replicas); with `gathers`, as in debug mode, ranks
/// gather checksums. Collective with `gathers`. Errors: c10::Error naming the first tensor that
/// differs, the axis, two ranks and the first
///         element in which these differ: with `gathers` on all ranks.
void check_equal_along(const RanksAlong& along, const std::string& what,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                       Runtime& runtime, bool gathers);

}  // namespace accelerate
