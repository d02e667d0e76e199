/// The axes along which the ranks of a job are arranged.
///
/// accelerate/config/parallelism_config.h has their sizes, accelerate/mesh/mesh.h the ranks along
/// them.
/// Threads: values.
#pragma once

#include <cstddef>

#include "accelerate/base/enum_text.h"

namespace accelerate {

/// The axes of a mesh. The first six, outermost first, divide the ranks. ep and edp divide
/// dp_shard_cp_sp once more, for the experts of a model: sp, cp and dp_shard, in this order, have
/// an inner piece of ep and an outer piece of edp each. The size of the inner piece is the greatest
/// common divisor of the axis and of the part of ep that is left. The ranks along ep are
/// consecutive along dp_shard_cp_sp if sp, and then cp, is used up before ep goes on to the next
/// axis; with ep 2, dp_shard 2 and cp 3 they are 3 apart. Each of the other axes joins several of
/// the first six into one, with the inner ones varying faster.
enum class MeshAxis {
  kPp,           ///< stages of a pipeline
  kDpReplicate,  ///< replicas of the model
  kDpShard,      ///< shards of a replica's parameters
  kCp,           ///< parts of each sequence, which exchange keys and values
  kSp,           ///< parts of each sequence, which exchange attention heads
  kTp,           ///< parts of each layer
  kEp,           ///< parts of each list of experts
  kEdp,          ///< ranks along dp_shard_cp_sp that have the same experts
  kDp,           ///< dp_replicate and dp_shard: ranks with batches of their own
  kDpShardCp,    ///< dp_shard and cp: ranks that share one replica's parameters
  kDpCp,         ///< dp_replicate, dp_shard and cp: ranks over which losses are averaged
  kDpCpSp,       ///< dp_replicate, dp_shard, cp and sp: ranks with tokens of their own
  kDpShardCpSp,  ///< dp_shard, cp and sp: those of one replica
};

ACCELERATE_ENUM_TEXTS(MeshAxis, "mesh axis", "pp", "dp_replicate", "dp_shard", "cp", "sp", "tp",
                      "ep", "edp", "dp", "dp_shard_cp", "dp_cp", "dp_cp_sp", "dp_shard_cp_sp")

/// Whether the axis joins sp with others, as edp does where no ranks divide experts. A DeviceMesh
/// makes the groups along such an axis on first use, since techniques reduce over them in jobs that
/// cut sequences alone.
inline constexpr bool joins_sp(MeshAxis axis) {
  return axis == MeshAxis::kDpCpSp || axis == MeshAxis::kDpShardCpSp || axis == MeshAxis::kEdp;
}

/// How many axes divide the ranks, without those that divide some of them once more.
inline constexpr size_t kNumPlainAxes = 6;

}  // namespace accelerate
