/// Where the parts of one tensor of a model are: how ranks that stand along the axes of a mesh cut
/// it among them.
///
///   TensorPlacement qkv = {
///       .name = "attention.qkv.weight",
///       .shape = {384, 128},
///       .cuts = {{.axis = MeshAxis::kTp, .dim = 0, .blocks = {128, 128, 128}}}};
///   boxes_of(qkv, Mesh({.tp = 2}), /*rank=*/1)   // rows 64-127, 192-255 and 320-383
///
/// A length that does not divide evenly is cut as rows are: ceil(length / ranks) on each; the last
/// ranks have less, or nothing (base/shard_rows.h).
/// Units:   shapes, lengths and offsets are numbers of elements.
/// Threads: values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "accelerate/base/mesh_axis.h"
#include "accelerate/files/formats/boxes.h"
#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/mesh.h"

namespace accelerate {

/// Ranks along an axis have each a part of a tensor's dim.
struct Cut {
  /// One that divides the ranks, or ep; not pp, for which a placement has stages.
  MeshAxis axis = MeshAxis::kTp;
  int dim = 0;
  /// Lengths along the dim that follow each other and are cut alike, as of the queries, keys and
  /// values in one weight; empty: the dim is one. Several cuts of a dim have the same blocks, and
  /// a later one cuts what an earlier one left of each.
  std::vector<int64_t> blocks = {};
  /// So many neighbours along the axis have the same part, and use it with other data: its gradient
  /// is a partial sum among them after a backward pass. It divides the axis.
  int copies = 1;

  bool operator==(const Cut&) const = default;
};

struct TensorPlacement {
  std::string name = {};
  /// The whole tensor's.
  std::vector<int64_t> shape = {};
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<Cut> cuts = {};
  /// The axes whose ranks divide the rows (dim 0) of what the cuts left, as the last cut; a tensor
  /// without dims has one row. Empty: rows are not divided.
  AxisSet rows = {};
  /// The places along pp that have the tensor; several have a copy each, as of a tied tensor.
  /// Empty: all have it.
  std::vector<int> stages = {};
  /// Along which its gradient is a partial sum after a backward pass; not pp, whose copies have
  /// parts of one, too.
  AxisSet sums = {};

  /// The axes along which ranks have different parts.
  AxisSet cut_axes() const;
  /// The axes along which values are the same.
  AxisSet equal() const { return AxisSet::all() - cut_axes(); }
  /// "[384, 128] Float; tp cuts dim 0 in blocks of 128, 128, 128; dp_shard divides rows; the same
  /// along dp_replicate", with the axes that have several ranks.
  std::string text(const Mesh& mesh) const;

  bool operator==(const TensorPlacement&) const = default;
};

/// A box of the whole tensor, and where it is in the tensor that the rank has.
struct PlacedBox {
  Box whole;
  Box part;

  bool operator==(const PlacedBox&) const = default;
};

/// The boxes of the tensor that the rank has, no two of which have an element in common. Empty for
/// a rank without elements of it.
/// \pre The placement fits the mesh; see check_placement.
std::vector<PlacedBox> boxes_of(const TensorPlacement& placement, const Mesh& mesh, int rank);

/// How many different parts ranks have of the tensor, and the number of the rank's: ranks with one
/// number have the same boxes. -1 on a rank of a stage without the tensor.
int num_parts(const TensorPlacement& placement, const Mesh& mesh);
int part_number(const TensorPlacement& placement, const Mesh& mesh, int rank);

/// The shape of what the rank's module has: cut, with all rows of its part. A rank of a stage
/// without the tensor has the same shape, with no rows.
std::vector<int64_t> cut_shape(const TensorPlacement& placement, const Mesh& mesh, int rank);

/// Whether the rank stands first along those of the axes along which values are the same, and among
/// the copies of a cut along one of the axes, so that what it has counts; among copies in several
/// stages the first stage's counts.
bool is_first_copy(const TensorPlacement& placement, const Mesh& mesh, int rank,
                   AxisSet axes = AxisSet::all());

/// Errors: c10::ValueError naming the tensor, and a box that no rank would have or that several
///         would, for blocks that are not the dim, for an axis that cuts twice, for axes, dims and
///         stages that there are not, for copies that do not divide their axis, and for sums along
///         an axis that cuts it, or pp.
void check_placement(const TensorPlacement& placement, const Mesh& mesh);

}  // namespace accelerate
