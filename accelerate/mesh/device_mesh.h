/// A mesh with the process groups of this rank: one for each axis with more than one rank, named by
/// the axis, as in "tp of ranks 4,5".
///
/// Axes along which a rank has the same neighbours, as dp and dp_shard where there is one replica,
/// or ep and dp_shard where each rank has experts of its own, share a group, which belongs to the
/// first one (GroupOptions::axis) and has that one's name. Threads: the rank's thread. Mirrors:
/// torch.distributed.device_mesh, DeviceMesh, as ParallelismConfig.build_device_mesh makes
///          it.
/// Differs: sp and pp have groups, too.
#pragma once

#include <array>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/base/enum_text.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

/// A rank's part of the data. Ranks that differ in tp, cp, sp or pp only train the same batches
/// alike, so training counts shares of the data where it would count ranks without a mesh.
struct DataShare {
  /// The number of this rank's share, from 0.
  int index = 0;
  int count = 1;
  /// The rank's column: the ranks that have its numbers along the other axes, one for each share,
  /// in the order of shares. Null where there is one share.
  ProcessGroupPtr group = nullptr;
};

class DeviceMesh {
 public:
  /// Makes the groups. Collective over all ranks of the job. The backend and the time-out in
  /// `options` apply to each group.
  /// Errors: c10::ValueError if the mesh is for another number of ranks; those of
  ///         Runtime::new_group.
  DeviceMesh(Mesh mesh, Runtime& runtime, GroupOptions options = {});

  const Mesh& mesh() const { return mesh_; }
  /// This rank.
  int rank() const { return rank_; }
  int size(MeshAxis axis) const { return mesh_.size(axis); }
  /// This rank's number along the axis.
  int coordinate(MeshAxis axis) const { return mesh_.coordinate(rank_, axis); }
  /// This rank's group along the axis; null where it is the only one. Local, but the first use of
  /// an axis without groups from the beginning (Mesh::has_groups_along) is collective over the
  /// group.
  const ProcessGroupPtr& group(MeshAxis axis) const;
  /// This rank's part of its group along the axis, which is cut into parts of `size` neighbours;
  /// null where a part is one rank. Made on first use, and collective over the part then.
  /// Errors: c10::ValueError for a size that does not divide the group; those of
  ///         Runtime::new_group.
  ProcessGroupPtr part(MeshAxis axis, int size) const;
  /// The group of the ranks with these numbers along the axis, ascending and with the number of
  /// this rank; null for a single number. Made on first use, and collective over its ranks then.
  /// Errors: those of Runtime::new_group.
  ProcessGroupPtr among(MeshAxis axis, const std::vector<int>& coordinates) const;
  /// A group of two ranks along the axis for messages in one direction, named by both, as in
  /// "pp 3 to 4"; `from` and `to` are numbers along the axis, one of them this rank's. The ranks
  /// stand in it in ascending order. Made on first use, and collective over both then.
  /// Errors: those of Runtime::new_group.
  ProcessGroupPtr channel(MeshAxis axis, int from, int to) const;
  /// This rank's group along several axes; null where it is the only one. That of an axis, where
  /// that has the same ranks, else made on first use, and collective over its ranks then.
  /// Errors: those of Runtime::new_group.
  ProcessGroupPtr group(AxisSet axes) const;
  /// A share for each place along dp.
  DataShare data_share() const {
    return {.index = coordinate(MeshAxis::kDp),
            .count = size(MeshAxis::kDp),
            .group = group(MeshAxis::kDp)};
  }

 private:
  ProcessGroupPtr group_of(MeshAxis axis, std::vector<int> ranks) const;
  ProcessGroupPtr make_group(MeshAxis axis, std::vector<int> ranks, std::string name) const;

  const Mesh mesh_;
  Runtime& runtime_;
  const GroupOptions options_;
  const int rank_;
  mutable std::map<std::vector<int>, ProcessGroupPtr> made_;         // by their ranks
  mutable std::map<std::pair<int, int>, ProcessGroupPtr> channels_;  // by sender and receiver
  mutable std::array<ProcessGroupPtr, std::size(EnumTable<MeshAxis>::kTexts)> groups_;
};

}  // namespace accelerate
