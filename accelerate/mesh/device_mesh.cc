#include "accelerate/mesh/device_mesh.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace accelerate {
namespace {

constexpr char kOfRanks[] = " of ranks ";

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
    : mesh_(std::move(mesh)), rank_(runtime.topology().rank) {
  TORCH_CHECK_VALUE(mesh_.num_ranks() == runtime.topology().world_size, "a mesh of ",
                    mesh_.num_ranks(), " ranks (", mesh_.to_string(), ") does not fit a job of ",
                    runtime.topology().world_size, " ranks");
  std::map<std::vector<int>, ProcessGroupPtr> made;
  for (const MeshAxis axis : values<MeshAxis>()) {
    if (mesh_.size(axis) == 1) continue;
    options.ranks = mesh_.group(rank_, axis);
    ProcessGroupPtr& group = made[options.ranks];
    if (!group) {
      options.name = absl::StrCat(to_string(axis), kOfRanks, list_of(options.ranks));
      group = runtime.new_group(options);
    }
    groups_[static_cast<size_t>(axis)] = group;
  }
}

std::optional<MeshAxis> axis_of_group(absl::string_view name) {
  for (const MeshAxis axis : values<MeshAxis>()) {
    if (absl::StartsWith(name, absl::StrCat(to_string(axis), kOfRanks))) return axis;
  }
  return std::nullopt;
}

}  // namespace accelerate
