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
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

/// Ranks along an axis.
struct RanksAlong {
  MeshAxis axis = MeshAxis::kTp;
  ProcessGroupPtr group;
  /// Their numbers in the job.
  std::vector<int> ranks;
};

/// What ranks along an axis train alike, by the names of the parameters and in the same order.
struct EqualAlong {
  RanksAlong along;
  NamedTensors trained = {};
};

/// Compares the ranks' tensors, which have the same names and sizes in the same order; `what` they
/// are in messages, as "gradients". A Runtime that sees all ranks, as the simulator's does,
/// compares them by itself (Runtime::check_replicas); elsewhere and with `gathers`, as in debug
/// mode, ranks do: see compare_by_gathering. Collective with `gathers`.
/// Errors: those of Runtime::check_replicas and of compare_by_gathering.
void check_equal_along(const RanksAlong& along, const std::string& what,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                       Runtime& runtime, bool gathers);

/// The same of the gradients of what is trained; a rank without a gradient has zeros.
void check_equal_gradients(const EqualAlong& equal, Runtime& runtime, bool gathers);

/// The same comparison by the ranks themselves, which gather checksums. Collective.
/// Errors: c10::Error on all ranks, naming the first tensor that differs, the axis, two ranks and
///         the first element in which these differ.
void compare_by_gathering(const RanksAlong& along, const std::string& what,
                          const std::vector<std::pair<std::string, at::Tensor>>& tensors);

}  // namespace accelerate
