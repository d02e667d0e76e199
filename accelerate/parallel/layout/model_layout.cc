#include "accelerate/parallel/layout/model_layout.h"

#include <utility>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"

namespace accelerate {

ModelLayout::ModelLayout(Mesh mesh, std::vector<TensorPlacement> placements, AxisSet inputs)
    : mesh_(std::move(mesh)), placements_(std::move(placements)), inputs_(inputs) {
  for (size_t i = 0; i < placements_.size(); ++i) {
    const TensorPlacement& each = placements_[i];
    const auto [earlier, is_new] = by_name_.try_emplace(each.name, i);
    TORCH_CHECK_VALUE(is_new, "the layout has two placements of \"", each.name, "\", of ",
                      box_text(whole_box(placements_[earlier->second].shape)), " and ",
                      box_text(whole_box(each.shape)),
                      ", which overlap; copies in several stages are one placement");
    check_placement(each, mesh_);
  }
}

const TensorPlacement* ModelLayout::find(absl::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? nullptr : &placements_[found->second];
}

AxisSet ModelLayout::cuts() const {
  AxisSet axes;
  for (const TensorPlacement& each : placements_) axes |= each.cut_axes() - each.rows;
  return axes;
}

ModelLayout ModelLayout::with_rows(const std::vector<std::string>& names, AxisSet axes) const {
  std::vector<TensorPlacement> placements = placements_;
  for (const std::string& name : names) {
    const auto found = by_name_.find(name);
    if (found != by_name_.end()) placements[found->second].rows = axes;
  }
  return {mesh_, std::move(placements), inputs_};
}

std::string ModelLayout::text() const {
  std::string text;
  for (const TensorPlacement& each : placements_) {
    absl::StrAppend(&text, each.name, ": ", each.text(mesh_), "\n");
  }
  return text;
}

ModelLayout whole_layout(const torch::nn::Module& module, const Mesh& mesh) {
  std::vector<TensorPlacement> placements;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().defined()) continue;
    placements.push_back({.name = item.key(),
                          .shape = item.value().sizes().vec(),
                          .dtype = item.value().scalar_type()});
  }
  return {mesh, std::move(placements)};
}

}  // namespace accelerate
