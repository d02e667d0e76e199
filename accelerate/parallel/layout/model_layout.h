/// Where the parts of a model's tensors are, by their names in the whole model. Every rank has the
/// same layout, of all ranks' parts, so that none asks another where something is.
///
/// A layout describes cuts, and makes none. Code that divides a model leaves the rank's parts in
/// the module's parameters and gives the layout, both before the model is prepared
/// (integration_tests/layouts/cut_by_hand.h does so for tests). Preparing a model takes the rank's
/// groups from the layout and then makes techniques, which leave the cuts as they are. Only rows
/// are divided later, by sharding when it is made, and with_rows adds them. A module without a
/// layout has all tensors whole (whole_layout).
///
/// Threads: values that do not change.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/parallel/layout/placement.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate {

class ModelLayout {
 public:
  /// Errors: those of check_placement; c10::ValueError naming a tensor that is placed twice, and
  ///         the boxes of both placements.
  ModelLayout(Mesh mesh, std::vector<TensorPlacement> placements);

  const Mesh& mesh() const { return mesh_; }
  /// As they were given.
  const std::vector<TensorPlacement>& placements() const { return placements_; }
  /// Null for a tensor that the layout does not have.
  const TensorPlacement* find(absl::string_view name) const;

  /// The axes along which ranks have different parts of some tensor, but for those along which rows
  /// are divided.
  AxisSet divides() const;
  /// The same layout where the rows of these tensors, as far as it has them, are divided along the
  /// axes.
  ModelLayout with_rows(const std::vector<std::string>& names, AxisSet axes) const;

  /// A line for each tensor: its name and its placement. Checkpoints tell layouts apart by it.
  std::string text() const;

 private:
  Mesh mesh_;
  std::vector<TensorPlacement> placements_;
  std::unordered_map<std::string, size_t> by_name_;
};

/// The layout of a module of which each rank has all parameters.
ModelLayout whole_layout(const torch::nn::Module& module, const Mesh& mesh);

namespace internal {

// Tells what prepares the module that its parameters are parts of a model's, cut as the layout
// says. Local. To be called before the module is prepared.
void give_layout(const std::shared_ptr<torch::nn::Module>& module,
                 std::shared_ptr<const ModelLayout> layout);
// What the module was given; null: nothing.
std::shared_ptr<const ModelLayout> given_layout(const torch::nn::Module& module);

}  // namespace internal
}  // namespace accelerate
