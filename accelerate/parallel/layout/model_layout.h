/// Where the parts of a model's tensors are, by their names in the whole model. Every rank has the
/// same layout, of all ranks' parts, so that none asks another where something is.
///
/// A layout describes cuts, and makes none. When a model is prepared, techniques that cut it give
/// its layout, the rank's groups follow from that, and then the same techniques leave the module
/// the rank's parts (`layout` and `cut` of a row in parallel/apply.h). Other techniques leave the
/// cuts as they are. Only rows are divided later, by sharding when it is made, and with_rows adds
/// them. A module that no technique cuts has all tensors whole (whole_layout).
///
/// Threads: values that do not change.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/parallel/layout/placement.h"

namespace accelerate {

class ModelLayout {
 public:
  /// Errors: those of check_placement; c10::ValueError naming a tensor that is placed twice, and
  ///         the boxes of both placements.
  /// `inputs`: the axes along which ranks have different parts of one input, as of a sequence.
  ModelLayout(Mesh mesh, std::vector<TensorPlacement> placements, AxisSet inputs = {});

  const Mesh& mesh() const { return mesh_; }
  /// As they were given.
  const std::vector<TensorPlacement>& placements() const { return placements_; }
  /// Null for a tensor that the layout does not have.
  const TensorPlacement* find(absl::string_view name) const;

  /// The axes along which ranks have different parts of some tensor, but for those along which rows
  /// are divided.
  AxisSet cuts() const;
  /// Those, and the axes along which ranks have different parts of one input: what groups follow
  /// from.
  AxisSet divides() const { return cuts() | inputs_; }
  /// The same layout where the rows of these tensors, as far as it has them, are divided along the
  /// axes.
  ModelLayout with_rows(const std::vector<std::string>& names, AxisSet axes) const;
  /// The same layout where ranks have different parts of one input along these axes as well.
  ModelLayout with_inputs(AxisSet axes) const { return {mesh_, placements_, inputs_ | axes}; }

  /// A line for each tensor: its name and its placement. Checkpoints tell layouts apart by it.
  std::string text() const;

 private:
  Mesh mesh_;
  std::vector<TensorPlacement> placements_;
  AxisSet inputs_;
  std::unordered_map<std::string, size_t> by_name_;
};

/// The layout of a module of which each rank has all parameters.
ModelLayout whole_layout(const torch::nn::Module& module, const Mesh& mesh);

}  // namespace accelerate
