/// What a rank's groups are for.
///
/// Threads: the rank's thread.
#pragma once

#include "accelerate/comm/process_group.h"
#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/device_mesh.h"

namespace accelerate {

/// This rank's groups; null where the rank is the only one.
struct RankRoles {
  /// Whose batches the rank reads. Ranks of one share read the same ones.
  DataShare loader = {};
  /// Whose tokens the rank computes: gradients are means over these shares, and counts of tokens
  /// sums over them.
  DataShare tokens = {};
  /// The axes of those shares.
  AxisSet token_axes = {};
  /// The axes along which ranks divide the rows of parameters.
  AxisSet shard_axes = {};
  /// The ranks that divide the rows of parameters.
  ProcessGroupPtr shards = nullptr;
  /// Whether the parameters of models become shards: of those ranks, or of this rank alone.
  bool makes_shards = false;
  /// The ranks with the same rows in other replicas.
  ProcessGroupPtr replicas = nullptr;
  /// The ranks with the same part of a model, which begin with equal values; `tokens.group` where
  /// these are the same ranks.
  ProcessGroupPtr same_part = nullptr;
  /// The ranks whose largest values agree, as scales of fp8 need: those of `tokens`, and those with
  /// other parts of the same layers; `tokens.group` where these are the same ranks.
  ProcessGroupPtr scales = nullptr;
  /// The axes of `shards`, and those along which ranks have parts of one model.
  AxisSet norm_axes = {};
  /// The ranks that together have each element of a model: once, where those that have a tensor
  /// alike count it at the first of them.
  ProcessGroupPtr norm = nullptr;
};

/// The roles of this rank where techniques divide models along pp and tp, and sequences along cp
/// and sp, as far as these axes are in `divides`. Along the others ranks do the same.
/// `world`: all ranks of the job. `divides_rows`: whether ranks divide rows of parameters also
/// where there is one along dp_shard: then those with other parts of a sequence do, as they do
/// wherever ranks divide experts. Collective over the ranks of groups that no earlier call has
/// made; without axes in `divides` none is made.
/// Errors: those of Runtime::new_group.
RankRoles rank_roles(const DeviceMesh& mesh, AxisSet divides, const ProcessGroupPtr& world,
                     bool divides_rows = true);

/// The roles in a job without a mesh, where each rank has a share of its own.
RankRoles rank_roles(const DataShare& share);

}  // namespace accelerate
