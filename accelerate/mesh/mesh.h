/// The ranks of a job, arranged along named axes.
///
///   const Mesh mesh({.dp_shard = 2, .tp = 4});   // or Mesh(config)
///   mesh.coordinate(5, MeshAxis::kTp)            // 1
///   mesh.group(5, MeshAxis::kDpShard)            // ranks 1 and 5
///
/// Ranks vary fastest along the last axis in the order pp, dp_replicate, dp_shard, cp, sp, tp, so
/// that ranks that communicate most are neighbours. Those along dp_shard_cp_sp are arranged once
/// more for experts, as edp x ep: a second view of the same ranks. ep takes what it can of the
/// inner axes, the greatest number that divides them, and the rest of the outer ones. A mesh is
/// arithmetic on numbers of ranks: every rank computes the same one. device_mesh.h has the process
/// groups.
///
/// Errors:  c10::ValueError for an axis without ranks, and for an ep that does not divide
///          dp_shard_cp_sp. Ranks are those of the mesh.
/// Threads: values that do not change.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/mesh/axis_set.h"

namespace accelerate {

/// How many ranks there are along each axis.
struct MeshSizes {
  int pp = 1;
  int dp_replicate = 1;
  int dp_shard = 1;
  int cp = 1;
  int sp = 1;
  int tp = 1;
  /// How many of the ranks along dp_shard_cp_sp have a part each of all experts.
  int ep = 1;
};

class Mesh {
 public:
  explicit Mesh(const MeshSizes& sizes, PpPlacement pp_placement = PpPlacement::kOutermost);
  explicit Mesh(const ParallelismConfig& config);

  int num_ranks() const { return num_ranks_; }

  /// Ranks along an axis; of a joined one the product of its parts.
  int size(MeshAxis axis) const { return size(AxisSet{axis}); }

  /// Those that divide the ranks and have more than one rank, outermost first; not ep and edp.
  std::vector<MeshAxis> axes() const;

  /// The rank's number along the axis, from 0.
  int coordinate(int rank, MeshAxis axis) const { return coordinate(rank, AxisSet{axis}); }

  /// The ranks that differ from `rank` along the axis only, itself included; ascending, so that
  /// each stands at its coordinate.
  std::vector<int> group(int rank, MeshAxis axis) const { return group(rank, AxisSet{axis}); }

  /// The same along several axes at once, as along an axis that joins them.
  int size(AxisSet axes) const;
  int coordinate(int rank, AxisSet axes) const;
  std::vector<int> group(int rank, AxisSet axes) const;
  /// Those of the axes that have several ranks, and of axes that are not all among them the pieces
  /// that have. Where ep or edp has pieces of one rank, these are left out: the set has the same
  /// ranks, and axes() names ep or edp, but contains() is false.
  AxisSet several(AxisSet axes) const;

  /// Whether jobs make the groups along the axis with the mesh: it has several ranks, and does not
  /// join sp with others (joins_sp) or is the edp beside an ep.
  bool has_groups_along(MeshAxis axis) const {
    const bool is_beside_ep = axis == MeshAxis::kEdp && size(MeshAxis::kEp) > 1;
    return size(axis) > 1 && (is_beside_ep || !joins_sp(axis));
  }

  /// "dp_shard 2 x tp 4", outermost first, and "dp_shard 4 (edp 2 x ep 2)" for an axis with a piece
  /// of ep; "1 rank" without axes.
  std::string to_string() const;

  bool operator==(const Mesh&) const = default;

 private:
  // An axis, or one of its two pieces, along which neighbours are `stride` ranks apart.
  struct Piece {
    MeshAxis axis = MeshAxis::kPp;
    AxisSet set = {};
    int size = 1;
    int stride = 1;
    bool operator==(const Piece&) const = default;
  };

  std::array<Piece, kNumPlainAxes + 3> pieces_;  // outermost first
  int num_ranks_ = 1;
};

/// What lies where: a line for the mesh, and one for each node with its ranks and their coordinates
/// along each axis. `nodes` has each rank's node; of many nodes the first are named.
///
///   mesh of 8 ranks: dp_shard 2 x tp 4
///     node 0: ranks 0-3: dp_shard 0, tp 0-3
///     node 1: ranks 4-7: dp_shard 1, tp 0-3
std::string placement_text(const Mesh& mesh, absl::Span<const int> nodes);

/// The first group along the axis whose ranks are on several nodes; empty if there is none.
std::vector<int> first_group_across_nodes(const Mesh& mesh, MeshAxis axis,
                                          absl::Span<const int> nodes);

}  // namespace accelerate
