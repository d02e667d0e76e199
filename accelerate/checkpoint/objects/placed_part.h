/// Where a tensor that this rank trains belongs among the parts that ranks have of a parameter.
///
/// Threads: values.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/comm/process_group.h"
#include "accelerate/files/box_view.h"
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
  /// Whether ranks with the same part may have other values, as of means over their batches: the
  /// first one's count.
  bool copies_differ = false;

  /// The sizes of the whole parameter.
  const std::vector<int64_t>& shape() const { return placement.shape; }
  /// The boxes of the parameter that the tensor has, and where they are in the tensor. A box
  /// without dims is the one element of a parameter without dims.
  std::vector<PlacedBox> boxes() const { return boxes_of(placement, mesh, rank); }
  /// Whether this rank is of a stage that has the parameter.
  bool is_here() const { return part_number(placement, mesh, rank) >= 0; }
  /// Whether ranks divide its rows at most.
  bool is_by_rows() const { return placement.cuts.empty() && placement.stages.empty(); }
  /// part[box], in the memory of `part`, which is what this rank has of the parameter. Whole rows
  /// are one view; box_view makes one for each dim.
  at::Tensor view(const at::Tensor& part, const Box& box) const {
    if (!is_by_rows() || box.offsets.empty()) return box_view(part, box);
    return part.narrow(0, box.offsets[0], box.lengths[0]);
  }
};

}  // namespace accelerate
