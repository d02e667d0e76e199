/// What a rank's groups are for in a job, by the models that are prepared in it.
///
/// Threads: the rank's thread.
#pragma once

#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/roles.h"

namespace accelerate {

class AcceleratorState;

namespace internal {

struct TrainingState;

/// The axes along which the modules of prepared models have parts of their tensors. Local.
AxisSet divided_axes(const TrainingState& training);

/// This rank's groups where techniques divide models along these axes. ZeRO divides a model among
/// all ranks, however else they are arranged. Collective where a group is made; see rank_roles.
RankRoles roles_of(const AcceleratorState& state, const TrainingState& training, AxisSet divides);

/// Whether optimizers train shards of the models that are prepared from now on, by these roles:
/// those of `roles.shards`, or of this rank alone. Local.
bool makes_shards(const RankRoles& roles, const TrainingState& training);

}  // namespace internal
}  // namespace accelerate
