#include "accelerate/mesh/mesh.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
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

Mesh::Mesh(const MeshSizes& sizes, PpPlacement pp_placement) {
  std::array<std::pair<MeshAxis, int>, kNumPlainAxes> order = {{{kPp, sizes.pp},
                                                                {kDpReplicate, sizes.dp_replicate},
                                                                {kDpShard, sizes.dp_shard},
                                                                {kCp, sizes.cp},
                                                                {kSp, sizes.sp},
                                                                {kTp, sizes.tp}}};
  if (pp_placement == PpPlacement::kInsideDpReplicate) std::swap(order[0], order[1]);
  int left = sizes.ep;  // of ep, beside its pieces
  auto piece = pieces_.rbegin();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const auto [axis, size] = *it;
    TORCH_CHECK_VALUE(size >= 1, "Mesh: ", accelerate::to_string(axis), " has ", size,
                      " ranks; an axis has at least 1");
    TORCH_CHECK_VALUE(size <= std::numeric_limits<int>::max() / num_ranks_,
                      "Mesh: the sizes of its axes multiply to more than ",
                      std::numeric_limits<int>::max(), " ranks");
    const AxisSet inner = AxisSet{axis} & AxisSet{kEp};
    int of_ep = 1;
    if (!inner.empty()) {
      of_ep = std::gcd(size, left);
      left /= of_ep;
      *piece++ = {.axis = axis, .set = inner, .size = of_ep, .stride = num_ranks_};
    }
    *piece++ = {.axis = axis,
                .set = AxisSet{axis} - inner,
                .size = size / of_ep,
                .stride = num_ranks_ * of_ep};
    num_ranks_ *= size;
  }
  TORCH_CHECK_VALUE(left == 1, "Mesh: ep has ", sizes.ep, " ranks, which do not divide the ",
                    size(kDpShardCpSp), " along dp_shard_cp_sp");
}

Mesh::Mesh(const ParallelismConfig& config) : Mesh(sizes_of(config), config.pp_placement()) {}

std::vector<MeshAxis> Mesh::axes() const {
  std::vector<MeshAxis> axes;
  for (const Piece& piece : pieces_) {
    const bool is_first = axes.empty() || axes.back() != piece.axis;
    if (is_first && size(piece.axis) > 1) axes.push_back(piece.axis);
  }
  return axes;
}

int Mesh::size(AxisSet axes) const {
  int size = 1;
  for (const Piece& piece : pieces_) {
    if (!(piece.set & axes).empty()) size *= piece.size;
  }
  return size;
}

int Mesh::coordinate(int rank, AxisSet axes) const {
  int coordinate = 0;
  for (const Piece& piece : pieces_) {
    if ((piece.set & axes).empty()) continue;
    coordinate = coordinate * piece.size + rank / piece.stride % piece.size;
  }
  return coordinate;
}

std::vector<int> Mesh::group(int rank, AxisSet axes) const {
  std::vector<int> ranks = {rank};
  for (const Piece& piece : pieces_) {
    if ((piece.set & axes).empty()) continue;
    ranks[0] -= rank / piece.stride % piece.size * piece.stride;
  }
  for (const Piece& piece : pieces_) {
    if ((piece.set & axes).empty()) continue;
    std::vector<int> next;
    next.reserve(ranks.size() * static_cast<size_t>(piece.size));
    for (const int first : ranks) {
      for (int i = 0; i < piece.size; ++i) next.push_back(first + i * piece.stride);
    }
    ranks = std::move(next);
  }
  return ranks;
}

AxisSet Mesh::several(AxisSet axes) const {
  AxisSet found;
  for (const Piece& piece : pieces_) {
    const bool is_whole = axes.contains(piece.axis);
    if ((is_whole ? size(piece.axis) : piece.size) > 1) found |= axes & piece.set;
  }
  return found;
}

std::string Mesh::to_string() const {
  if (num_ranks_ == 1) return "1 rank";
  return absl::StrJoin(axes(), " x ", [this](std::string* text, MeshAxis axis) {
    absl::StrAppend(text, accelerate::to_string(axis), " ", size(axis));
    const AxisSet inner = AxisSet{axis} & AxisSet{kEp};
    if (size(inner) == 1) return;
    absl::StrAppend(text, " (edp ", size(AxisSet{axis} - inner), " x ep ", size(inner), ")");
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
