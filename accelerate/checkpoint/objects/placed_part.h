/// Where a tensor that this rank trains belongs among the parts that ranks have of a parameter.
///
/// Threads: values.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/comm/process_group.h"
#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/parallel/layout/placement.h"

namespace accelerate {

struct PlacedPart {
  /// That of the whole parameter. It has no cuts and rows along axes of one rank.
  TensorPlacement placement = {};
  Mesh mesh = Mesh(MeshSizes());
  /// This rank in the mesh.
  int rank = 0;
  /// The axes along which ranks together have the parameter, and these ranks, in the order of the
  /// mesh; null: this rank has all of it.
  AxisSet axes = {};
  ProcessGroupPtr group = nullptr;

  /// The sizes of the whole parameter.
  const std::vector<int64_t>& shape() const { return placement.shape; }
  /// The boxes of the parameter that the tensor has, and where they are in the tensor. A box
  /// without dims is the one element of a parameter without dims.
  std::vector<PlacedBox> boxes() const { return boxes_of(placement, mesh, rank); }
  /// Whether ranks divide its rows at most.
  bool is_by_rows() const { return placement.cuts.empty() && placement.stages.empty(); }
};

}  // namespace accelerate
