#include "accelerate/mesh/device_mesh.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace accelerate {
namespace {

// The groups along an axis differ in their first rank, so their names differ, too.
std::string list_of(const std::vector<int>& ranks) {
  constexpr size_t kMostNamed = 8;
  if (ranks.size() <= kMostNamed) return absl::StrJoin(ranks, ",");
  return absl::StrCat(ranks[0], ",", ranks[1], ",...,", ranks.back());
}

}  // namespace

// Every rank makes its groups axis by axis. The groups along one axis have no rank in common, so
// each waits for its members alone, and they are all at the same axis. Axes have equal groups on
// all ranks or on none.
DeviceMesh::DeviceMesh(Mesh mesh, Runtime& runtime, GroupOptions options)
    : mesh_(std::move(mesh)),
      runtime_(runtime),
      options_(std::move(options)),
      rank_(runtime.topology().rank) {
  TORCH_CHECK_VALUE(mesh_.num_ranks() == runtime.topology().world_size, "rank ", rank_,
                    ": a mesh of ", mesh_.num_ranks(), " ranks (", mesh_.to_string(),
                    ") does not fit a job of ", runtime.topology().world_size, " ranks");
  for (const MeshAxis axis : values<MeshAxis>()) {
    if (mesh_.has_groups_along(axis)) group(axis);
  }
}

const ProcessGroupPtr& DeviceMesh::group(MeshAxis axis) const {
  ProcessGroupPtr& group = groups_[static_cast<size_t>(axis)];
  if (!group && mesh_.size(axis) > 1) group = group_of(axis, mesh_.group(rank_, axis));
  return group;
}

ProcessGroupPtr DeviceMesh::group_of(MeshAxis axis, std::vector<int> ranks) const {
  ProcessGroupPtr& group = made_[ranks];
  if (!group) {
    std::string name = absl::StrCat(to_string(axis), " of ranks ", list_of(ranks));
    group = make_group(axis, std::move(ranks), std::move(name));
  }
  return group;
}

ProcessGroupPtr DeviceMesh::make_group(MeshAxis axis, std::vector<int> ranks,
                                       std::string name) const {
  GroupOptions options = options_;
  options.name = std::move(name);
  options.axis = axis;
  options.ranks = std::move(ranks);
  return runtime_.new_group(options);
}

ProcessGroupPtr DeviceMesh::group(AxisSet axes) const {
  std::vector<int> ranks = mesh_.group(rank_, axes);
  if (ranks.size() == 1) return nullptr;
  ProcessGroupPtr& group = made_[ranks];
  if (!group) {
    GroupOptions options = options_;
    options.name = absl::StrCat(axes.to_string(), " of ranks ", list_of(ranks));
    options.ranks = std::move(ranks);
    group = runtime_.new_group(options);
  }
  return group;
}

ProcessGroupPtr DeviceMesh::part(MeshAxis axis, int size) const {
  const std::vector<int> ranks = mesh_.group(rank_, axis);
  const int count = static_cast<int>(ranks.size());
  TORCH_CHECK_VALUE(size > 0 && count % size == 0, "rank ", rank_, ": the ", count, " ranks along ",
                    to_string(axis), " cannot be cut into parts of ", size);
  if (size == 1) return nullptr;
  const auto begin = ranks.begin() + coordinate(axis) / size * size;
  return group_of(axis, {begin, begin + size});
}

ProcessGroupPtr DeviceMesh::among(MeshAxis axis, const std::vector<int>& coordinates) const {
  if (coordinates.size() == 1) return nullptr;
  const std::vector<int> all = mesh_.group(rank_, axis);
  std::vector<int> ranks;
  for (const int coordinate : coordinates) ranks.push_back(all[static_cast<size_t>(coordinate)]);
  return group_of(axis, std::move(ranks));
}

ProcessGroupPtr DeviceMesh::channel(MeshAxis axis, int from, int to) const {
  const std::vector<int> all = mesh_.group(rank_, axis);
  const int sender = all[static_cast<size_t>(from)], receiver = all[static_cast<size_t>(to)];
  ProcessGroupPtr& group = channels_[{sender, receiver}];
  if (!group) {
    group = make_group(axis, {std::min(sender, receiver), std::max(sender, receiver)},
                       absl::StrCat(to_string(axis), " ", sender, " to ", receiver));
  }
  return group;
}

}  // namespace accelerate
