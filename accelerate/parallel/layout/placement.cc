#include "accelerate/parallel/layout/placement.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include <c10/util/Exception.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/shard_rows.h"

namespace accelerate {
namespace {

// Neighbouring indices along a dim of the whole tensor.
struct Run {
  int64_t first = 0;
  int64_t count = 0;
};

int64_t length_of(const std::vector<Run>& runs) {
  int64_t length = 0;
  for (const Run& run : runs) length += run.count;
  return length;
}

// The runs' indices from the first-th on.
std::vector<Run> part_of(const std::vector<Run>& runs, int64_t first, int64_t count) {
  std::vector<Run> part;
  for (const Run& run : runs) {
    const int64_t begin = std::clamp<int64_t>(first, 0, run.count);
    const int64_t end = std::clamp<int64_t>(first + count, 0, run.count);
    if (end > begin) part.push_back({run.first + begin, end - begin});
    first -= run.count;
  }
  return part;
}

// The blocks of a dim, as its cuts have them.
std::vector<Run> blocks_of(const TensorPlacement& placement, size_t dim) {
  for (const Cut& cut : placement.cuts) {
    if (cut.dim != static_cast<int>(dim) || cut.blocks.empty()) continue;
    std::vector<Run> blocks;
    int64_t first = 0;
    for (const int64_t length : cut.blocks) {
      blocks.push_back({first, length});
      first += length;
    }
    return blocks;
  }
  return {{0, placement.shape[dim]}};
}

// What the cuts leave a rank of a dim.
std::vector<Run> cut_runs(const TensorPlacement& placement, const Mesh& mesh, int rank,
                          size_t dim) {
  std::vector<Run> runs = blocks_of(placement, dim);
  for (const Cut& cut : placement.cuts) {
    if (cut.dim != static_cast<int>(dim)) continue;
    for (Run& run : runs) {
      const ShardRows part = shard_rows(run.count, mesh.size(cut.axis) / cut.copies,
                                        mesh.coordinate(rank, cut.axis) / cut.copies);
      run = {run.first + part.first, part.count};
    }
  }
  std::erase_if(runs, [](const Run& run) { return run.count == 0; });
  return runs;
}

ShardRows rows_of(const TensorPlacement& placement, const Mesh& mesh, int rank, int64_t rows) {
  return shard_rows(rows, mesh.size(placement.rows), mesh.coordinate(rank, placement.rows));
}

bool has_stage(const TensorPlacement& placement, const Mesh& mesh, int rank) {
  return placement.stages.empty() ||
         std::ranges::count(placement.stages, mesh.coordinate(rank, MeshAxis::kPp)) > 0;
}

// All of a tensor but along one dim, where it is what the run says.
Box slab(const TensorPlacement& placement, size_t dim, const Run& run) {
  Box box = whole_box(placement.shape);
  box.offsets[dim] = run.first;
  box.lengths[dim] = run.count;
  return box;
}

void check_axis(const TensorPlacement& placement, MeshAxis axis) {
  const bool divides_ranks = static_cast<size_t>(axis) < kNumPlainAxes || axis == MeshAxis::kEp;
  TORCH_CHECK_VALUE(divides_ranks && axis != MeshAxis::kPp, "the layout of \"", placement.name,
                    "\": a cut is along one of ",
                    (AxisSet::all() - AxisSet{MeshAxis::kPp}).to_string(), ", or ep, not along ",
                    to_string(axis));
}

void check_blocks(const TensorPlacement& placement, const Cut& cut) {
  const auto dim = static_cast<size_t>(cut.dim);
  const int64_t length = placement.shape[dim];
  int64_t end = 0;
  for (const int64_t block : cut.blocks) {
    TORCH_CHECK_VALUE(block > 0, "the layout of \"", placement.name, "\": a block of dim ", cut.dim,
                      " is ", block, " long");
    const Run run{end, block};
    end += block;
    TORCH_CHECK_VALUE(end <= length, "the layout of \"", placement.name, "\": the block ",
                      box_text(slab(placement, dim, run)), " reaches beyond the tensor ",
                      box_text(whole_box(placement.shape)));
  }
  TORCH_CHECK_VALUE(cut.blocks.empty() || end == length, "the layout of \"", placement.name,
                    "\" leaves a hole: the blocks of dim ", cut.dim, " do not have ",
                    box_text(slab(placement, dim, {end, length - end})), " of ",
                    box_text(whole_box(placement.shape)));
}

// Ranks of one axis that cuts two dims have the boxes on a diagonal. Where the axis has one rank,
// the message is about two.
void check_cuts_once(const TensorPlacement& placement, const Mesh& mesh, const Cut& first,
                     const Cut& second) {
  if (first.axis != second.axis) return;
  const auto part = [&](const Cut& cut, bool is_last) {
    const int ranks = std::max(mesh.size(cut.axis) / cut.copies, 2);
    const ShardRows rows =
        shard_rows(placement.shape[static_cast<size_t>(cut.dim)], ranks, is_last ? ranks - 1 : 0);
    return Run{rows.first, rows.count};
  };
  Box hole = slab(placement, static_cast<size_t>(first.dim), part(first, /*is_last=*/false));
  if (first.dim != second.dim) {
    const auto dim = static_cast<size_t>(second.dim);
    const Run of_second = part(second, /*is_last=*/true);
    hole.offsets[dim] = of_second.first;
    hole.lengths[dim] = of_second.count;
  }
  TORCH_CHECK_VALUE(false, "the layout of \"", placement.name,
                    "\" leaves a hole: ", to_string(first.axis), " cuts it twice, along dims ",
                    first.dim, " and ", second.dim,
                    ", so that none of several ranks would have all of ", box_text(hole));
}

}  // namespace

AxisSet TensorPlacement::cut_axes() const {
  AxisSet axes = rows;
  for (const Cut& cut : cuts) axes |= AxisSet{cut.axis};
  if (!stages.empty()) axes |= AxisSet{MeshAxis::kPp};
  return axes;
}

std::string TensorPlacement::text(const Mesh& mesh) const {
  std::string text = absl::StrCat("[", absl::StrJoin(shape, ", "), "] ", c10::toString(dtype));
  for (const Cut& cut : cuts) {
    if (mesh.size(cut.axis) == 1) continue;
    absl::StrAppend(&text, "; ", to_string(cut.axis), " cuts dim ", cut.dim);
    if (cut.blocks.size() > 1) {
      absl::StrAppend(&text, " in blocks of ", absl::StrJoin(cut.blocks, ", "));
    }
    if (cut.copies > 1) {
      absl::StrAppend(&text, " in ", mesh.size(cut.axis) / cut.copies, " parts for ", cut.copies,
                      " ranks each, which sum gradients");
    }
  }
  if (const AxisSet axes = mesh.several(rows); !axes.empty()) {
    absl::StrAppend(&text, "; ", axes.to_string(), " divides rows");
  }
  if (!stages.empty() && mesh.size(MeshAxis::kPp) > 1) {
    absl::StrAppend(&text, stages.size() == 1 ? "; stage " : "; copies in stages ",
                    absl::StrJoin(stages, ", "));
  }
  if (const AxisSet axes = mesh.several(sums); !axes.empty()) {
    absl::StrAppend(&text, "; gradients are summed along ", axes.to_string());
  }
  if (const AxisSet axes = mesh.several(equal()); !axes.empty()) {
    absl::StrAppend(&text, "; the same along ", axes.to_string());
  }
  return text;
}

std::vector<PlacedBox> boxes_of(const TensorPlacement& placement, const Mesh& mesh, int rank) {
  if (!has_stage(placement, mesh, rank)) return {};
  if (placement.shape.empty()) {
    return std::vector<PlacedBox>(static_cast<size_t>(rows_of(placement, mesh, rank, 1).count));
  }
  std::vector<PlacedBox> boxes(1);
  for (size_t dim = 0; dim < placement.shape.size(); ++dim) {
    std::vector<Run> runs = cut_runs(placement, mesh, rank, dim);
    if (dim == 0) {
      const ShardRows rows = rows_of(placement, mesh, rank, length_of(runs));
      runs = part_of(runs, rows.first, rows.count);
    }
    std::vector<PlacedBox> longer;
    for (const PlacedBox& box : boxes) {
      int64_t offset = 0;
      for (const Run& run : runs) {
        PlacedBox& each = longer.emplace_back(box);
        each.whole.offsets.push_back(run.first);
        each.whole.lengths.push_back(run.count);
        each.part.offsets.push_back(offset);
        each.part.lengths.push_back(run.count);
        offset += run.count;
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

int num_parts(const TensorPlacement& placement, const Mesh& mesh) {
  int parts = mesh.size(placement.cut_axes() - AxisSet{MeshAxis::kPp});
  for (const Cut& cut : placement.cuts) parts /= cut.copies;
  return parts;
}

int part_number(const TensorPlacement& placement, const Mesh& mesh, int rank) {
  if (!has_stage(placement, mesh, rank)) return -1;
  AxisSet axes = placement.cut_axes() - AxisSet{MeshAxis::kPp};
  for (const Cut& cut : placement.cuts) {
    if (cut.copies > 1) axes = axes - AxisSet{cut.axis};
  }
  int number = mesh.coordinate(rank, axes);
  for (const Cut& cut : placement.cuts) {
    if (cut.copies == 1) continue;
    number =
        number * (mesh.size(cut.axis) / cut.copies) + mesh.coordinate(rank, cut.axis) / cut.copies;
  }
  return number;
}

std::vector<int64_t> cut_shape(const TensorPlacement& placement, const Mesh& mesh, int rank) {
  std::vector<int64_t> shape;
  for (size_t dim = 0; dim < placement.shape.size(); ++dim) {
    shape.push_back(length_of(cut_runs(placement, mesh, rank, dim)));
  }
  if (!shape.empty() && !has_stage(placement, mesh, rank)) shape[0] = 0;
  return shape;
}

bool is_first_copy(const TensorPlacement& placement, const Mesh& mesh, int rank, AxisSet axes) {
  const bool is_first_stage =
      placement.stages.empty() || mesh.coordinate(rank, MeshAxis::kPp) == placement.stages.front();
  const bool is_first_of_copies = std::ranges::all_of(placement.cuts, [&](const Cut& cut) {
    return !axes.contains(cut.axis) || mesh.coordinate(rank, cut.axis) % cut.copies == 0;
  });
  return is_first_stage && is_first_of_copies &&
         mesh.coordinate(rank, placement.equal() & axes) == 0;
}

void check_placement(const TensorPlacement& placement, const Mesh& mesh) {
  const auto dims = static_cast<int>(placement.shape.size());
  AxisSet cut_axes;
  for (size_t i = 0; i < placement.cuts.size(); ++i) {
    const Cut& cut = placement.cuts[i];
    check_axis(placement, cut.axis);
    TORCH_CHECK_VALUE(cut.dim >= 0 && cut.dim < dims, "the layout of \"", placement.name,
                      "\": a cut along dim ", cut.dim, " of a tensor with ", dims, " dims");
    check_blocks(placement, cut);
    TORCH_CHECK_VALUE(cut.copies > 0 && mesh.size(cut.axis) % cut.copies == 0, "the layout of \"",
                      placement.name, "\": a part for ", cut.copies, " of the ",
                      mesh.size(cut.axis), " ranks along ", to_string(cut.axis),
                      " each, which they do not divide evenly into");
    for (size_t j = 0; j < i; ++j) {
      const Cut& earlier = placement.cuts[j];
      check_cuts_once(placement, mesh, earlier, cut);
      TORCH_CHECK_VALUE(earlier.dim != cut.dim || earlier.blocks == cut.blocks, "the layout of \"",
                        placement.name, "\": ", to_string(earlier.axis), " and ",
                        to_string(cut.axis), " cut dim ", cut.dim, " in different blocks");
    }
    cut_axes |= AxisSet{cut.axis};
  }
  TORCH_CHECK_VALUE((placement.rows & (cut_axes | AxisSet{MeshAxis::kPp})).empty(),
                    "the layout of \"", placement.name, "\": rows are divided along ",
                    placement.rows.to_string(), ", and cuts are along ", cut_axes.to_string(),
                    "; an axis does one of these, and pp neither");
  const std::set<int> stages(placement.stages.begin(), placement.stages.end());
  TORCH_CHECK_VALUE(stages.size() == placement.stages.size(), "the layout of \"", placement.name,
                    "\": stages ", absl::StrJoin(placement.stages, ", "), " overlap in ",
                    box_text(whole_box(placement.shape)));
  TORCH_CHECK_VALUE(
      stages.empty() || (*stages.begin() >= 0 && *stages.rbegin() < mesh.size(MeshAxis::kPp)),
      "the layout of \"", placement.name, "\": stages ", absl::StrJoin(placement.stages, ", "),
      " of ", mesh.size(MeshAxis::kPp));
  TORCH_CHECK_VALUE(!mesh.several(placement.sums).contains(MeshAxis::kPp), "the layout of \"",
                    placement.name,
                    "\": gradients are summed along pp, for which a placement has stages");
  const AxisSet partial = placement.sums & (placement.rows | cut_axes);
  TORCH_CHECK_VALUE(partial.empty(), "the layout of \"", placement.name,
                    "\": gradients are summed along ", partial.to_string(),
                    ", which cuts the tensor");
}

}  // namespace accelerate
