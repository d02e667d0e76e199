#include "accelerate/mesh/mesh.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/message_text.h"

namespace accelerate {
namespace {

using enum MeshAxis;

constexpr size_t kMostNodesNamed = 32;

MeshSizes sizes_of(const ParallelismConfig& config) {
  return {.pp = config.pp_size(),
          .dp_replicate = config.dp_replicate_size(),
          .dp_shard = config.dp_shard_size(),
          .cp = config.cp_size(),
          .sp = config.sp_size(),
          .tp = config.tp_size(),
          .ep = config.ep_size()};
}

std::string node_line(const Mesh& mesh, int node, const std::vector<int>& ranks) {
  std::vector<std::string> axes;
  for (const MeshAxis axis : mesh.axes()) {
    std::vector<int> coordinates;
    for (const int rank : ranks) coordinates.push_back(mesh.coordinate(rank, axis));
    std::sort(coordinates.begin(), coordinates.end());
    coordinates.erase(std::unique(coordinates.begin(), coordinates.end()), coordinates.end());
    axes.push_back(absl::StrCat(to_string(axis), " ", rank_ranges(coordinates)));
  }
  return absl::StrCat("  node ", node, ": ", rank_list(ranks), ": ", absl::StrJoin(axes, ", "),
                      "\n");
}

}  // namespace

Mesh::Mesh(const MeshSizes& sizes, PpPlacement pp_placement)
    : extents_{Extent{sizes.pp}, {sizes.dp_replicate}, {sizes.dp_shard},
               {sizes.cp},       {sizes.sp},           {sizes.tp}} {
  std::array<MeshAxis, kNumPlainAxes> order = {kPp, kDpReplicate, kDpShard, kCp, kSp, kTp};
  if (pp_placement == PpPlacement::kInsideDpReplicate) std::swap(order[0], order[1]);
  for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
    Extent& extent = extents_[static_cast<size_t>(*axis)];
    TORCH_CHECK_VALUE(extent.size >= 1, "Mesh: ", accelerate::to_string(*axis), " has ",
                      extent.size, " ranks; an axis has at least 1");
    TORCH_CHECK_VALUE(extent.size <= std::numeric_limits<int>::max() / num_ranks_,
                      "Mesh: the sizes of its axes multiply to more than ",
                      std::numeric_limits<int>::max(), " ranks");
    extent.stride = num_ranks_;
    num_ranks_ *= extent.size;
  }
  const Extent& shards = extent(kDpShard);
  TORCH_CHECK_VALUE(sizes.ep >= 1 && shards.size % sizes.ep == 0, "Mesh: ep has ", sizes.ep,
                    " ranks, which do not divide the ", shards.size, " along dp_shard");
  extents_[static_cast<size_t>(kEp)] = {sizes.ep, shards.stride};
  extents_[static_cast<size_t>(kEdp)] = {shards.size / sizes.ep, shards.stride * sizes.ep};
}

Mesh::Mesh(const ParallelismConfig& config) : Mesh(sizes_of(config), config.pp_placement()) {}

int Mesh::size(MeshAxis axis) const {
  int size = 1;
  for (const MeshAxis part : parts_of(axis)) size *= extent(part).size;
  return size;
}

std::vector<MeshAxis> Mesh::axes() const {
  std::vector<MeshAxis> axes;
  for (const MeshAxis axis : {kPp, kDpReplicate, kDpShard, kCp, kSp, kTp}) {
    if (extent(axis).size > 1) axes.push_back(axis);
  }
  // Only pp may stand elsewhere.
  std::stable_sort(axes.begin(), axes.end(),
                   [this](MeshAxis a, MeshAxis b) { return extent(a).stride > extent(b).stride; });
  return axes;
}

int Mesh::coordinate(int rank, MeshAxis axis) const {
  int coordinate = 0;
  for (const MeshAxis part : parts_of(axis)) {
    const auto& [size, stride] = extent(part);
    coordinate = coordinate * size + rank / stride % size;
  }
  return coordinate;
}

// `axes`: plain ones, outermost first.
std::vector<int> Mesh::group_along(int rank, absl::Span<const MeshAxis> axes) const {
  std::vector<int> ranks = {rank};
  for (const MeshAxis axis : axes) ranks[0] -= coordinate(rank, axis) * extent(axis).stride;
  for (const MeshAxis axis : axes) {
    const auto& [size, stride] = extent(axis);
    std::vector<int> next;
    next.reserve(ranks.size() * static_cast<size_t>(size));
    for (const int first : ranks) {
      for (int i = 0; i < size; ++i) next.push_back(first + i * stride);
    }
    ranks = std::move(next);
  }
  return ranks;
}

std::vector<int> Mesh::group(int rank, MeshAxis axis) const {
  return group_along(rank, parts_of(axis));
}

// Outermost first, which only pp need not be in the order of MeshAxis.
std::vector<MeshAxis> Mesh::ordered(AxisSet axes) const {
  std::vector<MeshAxis> plain = axes.axes();
  std::stable_sort(plain.begin(), plain.end(),
                   [this](MeshAxis a, MeshAxis b) { return extent(a).stride > extent(b).stride; });
  return plain;
}

int Mesh::size(AxisSet axes) const {
  int size = 1;
  for (const MeshAxis axis : axes.axes()) size *= extent(axis).size;
  return size;
}

int Mesh::coordinate(int rank, AxisSet axes) const {
  int coordinate = 0;
  for (const MeshAxis axis : ordered(axes)) {
    const auto& [size, stride] = extent(axis);
    coordinate = coordinate * size + rank / stride % size;
  }
  return coordinate;
}

std::vector<int> Mesh::group(int rank, AxisSet axes) const {
  return group_along(rank, ordered(axes));
}

AxisSet Mesh::several(AxisSet axes) const {
  AxisSet found;
  for (const MeshAxis axis : axes.axes()) {
    if (extent(axis).size > 1) found |= AxisSet{axis};
  }
  return found;
}

std::string Mesh::to_string() const {
  if (num_ranks_ == 1) return "1 rank";
  return absl::StrJoin(axes(), " x ", [this](std::string* text, MeshAxis axis) {
    absl::StrAppend(text, accelerate::to_string(axis), " ", size(axis));
    if (axis == kDpShard && size(kEp) > 1) {
      absl::StrAppend(text, " (edp ", size(kEdp), " x ep ", size(kEp), ")");
    }
  });
}

std::string placement_text(const Mesh& mesh, absl::Span<const int> nodes) {
  std::map<int, std::vector<int>> ranks_of_node;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    ranks_of_node[nodes[rank]].push_back(static_cast<int>(rank));
  }
  std::string text = absl::StrCat("mesh of ", mesh.num_ranks(), " ranks: ", mesh.to_string(), "\n");
  size_t named = 0;
  for (const auto& [node, ranks] : ranks_of_node) {
    if (named++ == kMostNodesNamed) {
      absl::StrAppend(&text, "  and ", ranks_of_node.size() - kMostNodesNamed, " more nodes\n");
      break;
    }
    text += node_line(mesh, node, ranks);
  }
  return text;
}

std::vector<int> first_group_across_nodes(const Mesh& mesh, MeshAxis axis,
                                          absl::Span<const int> nodes) {
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    if (mesh.coordinate(rank, axis) != 0) continue;
    std::vector<int> ranks = mesh.group(rank, axis);
    const bool is_across = std::any_of(ranks.begin(), ranks.end(), [&](int other) {
      return nodes[static_cast<size_t>(other)] != nodes[static_cast<size_t>(rank)];
    });
    if (is_across) return ranks;
  }
  return {};
}

}  // namespace accelerate
