#include "accelerate/parallel/layout/model_layout.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include "absl/strings/str_cat.h"
#include "accelerate/base/shard_rows.h"
#include "accelerate/testing/value_error.h"

namespace accelerate {
namespace {

using enum MeshAxis;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<PlacedBox> boxes_in(const ModelLayout& layout, const std::string& name, int rank) {
  return boxes_of(*layout.find(name), layout.mesh(), rank);
}

// The ranks whose boxes count in norms, without those that have none.
std::vector<int> owners(const ModelLayout& layout, const std::string& name) {
  std::vector<int> ranks;
  for (int rank = 0; rank < layout.mesh().num_ranks(); ++rank) {
    if (!is_first_copy(*layout.find(name), layout.mesh(), rank)) continue;
    if (!boxes_in(layout, name, rank).empty()) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<std::string> texts_of(const std::vector<PlacedBox>& boxes) {
  std::vector<std::string> texts;
  for (const PlacedBox& box : boxes) {
    texts.push_back(absl::StrCat(box_text(box.whole), " at ", box_text(box.part)));
  }
  return texts;
}

TEST(TensorPlacement, OfRowsAndColumnsHasABoxForEachRank) {
  const Mesh mesh({.dp_replicate = 2, .tp = 2});
  const TensorPlacement rows = {.name = "up", .shape = {6, 4}, .cuts = {{.dim = 0}}};
  EXPECT_THAT(texts_of(boxes_of(rows, mesh, 3)), ElementsAre("[3:6, 0:4] at [0:3, 0:4]"));
  EXPECT_EQ(boxes_of(rows, mesh, 3), boxes_of(rows, mesh, 1));
  const TensorPlacement columns = {.name = "down", .shape = {6, 4}, .cuts = {{.dim = 1}}};
  EXPECT_THAT(texts_of(boxes_of(columns, mesh, 0)), ElementsAre("[0:6, 0:2] at [0:6, 0:2]"));
  EXPECT_THAT(cut_shape(columns, mesh, 0), ElementsAre(6, 2));
}

TEST(TensorPlacement, CutsFusedBlocksAlike) {
  const Mesh mesh({.tp = 2});
  const TensorPlacement qkv = {
      .name = "qkv", .shape = {12}, .cuts = {{.dim = 0, .blocks = {8, 2, 2}}}};
  EXPECT_THAT(texts_of(boxes_of(qkv, mesh, 1)),
              ElementsAre("[4:8] at [0:4]", "[9:10] at [4:5]", "[11:12] at [5:6]"));
}

TEST(TensorPlacement, LeavesTheLastRanksLess) {
  const Mesh mesh({.tp = 4});
  const TensorPlacement vocabulary = {.name = "tokens", .shape = {5, 2}, .cuts = {{.dim = 0}}};
  EXPECT_THAT(texts_of(boxes_of(vocabulary, mesh, 2)), ElementsAre("[4:5, 0:2] at [0:1, 0:2]"));
  EXPECT_THAT(boxes_of(vocabulary, mesh, 3), IsEmpty());
  EXPECT_THAT(cut_shape(vocabulary, mesh, 3), ElementsAre(0, 2));
}

// As ranks with shards have them: rows of the part that tensor parallelism left, which are several
// runs of the whole tensor's.
TEST(TensorPlacement, DividesRowsOfWhatTheCutsLeft) {
  const Mesh mesh({.dp_shard = 2, .tp = 2});
  const TensorPlacement gate_up = {.name = "gate_up",
                                   .shape = {8, 3},
                                   .cuts = {{.dim = 0, .blocks = {4, 4}}},
                                   .rows = {kDpShard}};
  EXPECT_THAT(texts_of(boxes_of(gate_up, mesh, 1)), ElementsAre("[2:4, 0:3] at [0:2, 0:3]"));
  EXPECT_THAT(texts_of(boxes_of(gate_up, mesh, 3)), ElementsAre("[6:8, 0:3] at [0:2, 0:3]"));
  EXPECT_THAT(cut_shape(gate_up, mesh, 3), ElementsAre(4, 3));
  const TensorPlacement scale = {.name = "scale", .shape = {}, .rows = {kDpShard}};
  EXPECT_THAT(texts_of(boxes_of(scale, mesh, 1)), ElementsAre("[] at []"));
  EXPECT_THAT(boxes_of(scale, mesh, 2), IsEmpty());
}

TEST(TensorPlacement, LeavesOtherStagesNoRows) {
  const Mesh mesh({.pp = 2, .tp = 2});
  const TensorPlacement last = {
      .name = "last", .shape = {6, 4}, .cuts = {{.dim = 1}}, .stages = {1}};
  EXPECT_THAT(cut_shape(last, mesh, 1), ElementsAre(0, 2));
  EXPECT_THAT(cut_shape(last, mesh, 3), ElementsAre(6, 2));
  EXPECT_THAT(boxes_of(last, mesh, 1), IsEmpty());
  const TensorPlacement scale = {.name = "scale", .shape = {}, .stages = {1}};
  EXPECT_THAT(cut_shape(scale, mesh, 1), IsEmpty());
}

TEST(TensorPlacement, NumbersThePartsThatRanksHave) {
  const Mesh mesh({.pp = 2, .dp_replicate = 2, .dp_shard = 2, .tp = 2});
  const TensorPlacement all = {.name = "all", .shape = {8}};
  const TensorPlacement part = {
      .name = "part", .shape = {8}, .cuts = {{.dim = 0}}, .rows = {kDpShard}, .stages = {1}};
  EXPECT_EQ(num_parts(all, mesh), 1);
  EXPECT_EQ(num_parts(part, mesh), 4);
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    EXPECT_EQ(part_number(all, mesh, rank), 0);
    // Replicas have the same parts.
    EXPECT_EQ(part_number(part, mesh, rank), rank < 8 ? -1 : rank % 4) << rank;
    if (rank < 12) continue;
    EXPECT_EQ(boxes_of(part, mesh, rank), boxes_of(part, mesh, rank - 4)) << rank;
  }
}

// Two heads of keys for four ranks.
TEST(TensorPlacement, GivesNeighboursTheSamePart) {
  const Mesh mesh({.dp_shard = 2, .tp = 4});
  const TensorPlacement keys = {.name = "keys",
                                .shape = {8, 3},
                                .cuts = {{.axis = kTp, .dim = 0, .copies = 2}},
                                .rows = {kDpShard}};
  EXPECT_THAT(cut_shape(keys, mesh, 0), ElementsAre(4, 3));
  EXPECT_THAT(texts_of(boxes_of(keys, mesh, 1)), ElementsAre("[0:2, 0:3] at [0:2, 0:3]"));
  EXPECT_THAT(texts_of(boxes_of(keys, mesh, 6)), ElementsAre("[6:8, 0:3] at [0:2, 0:3]"));
  EXPECT_EQ(num_parts(keys, mesh), 4);
  std::vector<int> numbers, counting;
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    numbers.push_back(part_number(keys, mesh, rank));
    if (is_first_copy(keys, mesh, rank)) counting.push_back(rank);
  }
  EXPECT_THAT(numbers, ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
  EXPECT_THAT(counting, ElementsAre(0, 2, 4, 6));
  EXPECT_TRUE(is_first_copy(keys, mesh, 1, {kDpShard})) << "copies along tp are not asked for";
  EXPECT_EQ(keys.text(mesh),
            "[8, 3] Float; tp cuts dim 0 in 2 parts for 2 ranks each, which sum gradients; "
            "dp_shard divides rows");
}

TEST(TensorPlacement, CountsTheFirstOfEqualTensors) {
  const Mesh mesh({.pp = 2, .dp_replicate = 2, .tp = 2});
  const ModelLayout layout(mesh, {{.name = "cut", .shape = {4}, .cuts = {{.dim = 0}}},
                                  {.name = "whole", .shape = {4}},
                                  {.name = "tied", .shape = {4}, .stages = {1, 0}},
                                  {.name = "last", .shape = {4}, .stages = {1}}});
  EXPECT_THAT(owners(layout, "cut"), ElementsAre(0, 1));
  EXPECT_THAT(owners(layout, "whole"), ElementsAre(0));
  EXPECT_THAT(owners(layout, "tied"), ElementsAre(4));
  EXPECT_THAT(owners(layout, "last"), ElementsAre(4));
  EXPECT_THAT(boxes_in(layout, "last", 3), IsEmpty());
  EXPECT_EQ(layout.divides(), (AxisSet{kPp, kTp}));
  EXPECT_EQ(layout.find("head"), nullptr);
}

TEST(ModelLayout, IsReadByPeople) {
  const Mesh mesh({.pp = 2, .dp_replicate = 2, .dp_shard = 2, .tp = 2});
  const ModelLayout layout(mesh, {{.name = "qkv",
                                   .shape = {12, 4},
                                   .cuts = {{.dim = 0, .blocks = {8, 2, 2}}},
                                   .rows = {kDpShard},
                                   .stages = {0}},
                                  {.name = "norm",
                                   .shape = {4},
                                   .dtype = c10::ScalarType::BFloat16,
                                   .stages = {0, 1},
                                   .sums = {kTp}}});
  EXPECT_EQ(layout.text(),
            "qkv: [12, 4] Float; tp cuts dim 0 in blocks of 8, 2, 2; dp_shard divides rows; stage "
            "0; the same along dp_replicate\n"
            "norm: [4] BFloat16; copies in stages 0, 1; gradients are summed along tp; the same "
            "along dp_replicate and dp_shard and tp\n");
}

TEST(ModelLayout, OfAModuleHasAllOfItOnEachRank) {
  const torch::nn::Linear linear(3, 2);
  const ModelLayout layout = whole_layout(*linear, Mesh({.dp_shard = 2}));
  EXPECT_THAT(texts_of(boxes_in(layout, "weight", 1)), ElementsAre("[0:2, 0:3] at [0:2, 0:3]"));
  EXPECT_TRUE(layout.divides().empty());
  const ModelLayout sharded = layout.with_rows({"weight", "other"}, {kDpShard});
  EXPECT_THAT(texts_of(boxes_in(sharded, "weight", 1)), ElementsAre("[1:2, 0:3] at [0:1, 0:3]"));
  EXPECT_THAT(texts_of(boxes_in(sharded, "bias", 1)), ElementsAre("[0:2] at [0:2]"));
  EXPECT_TRUE(sharded.divides().empty());
}

// Groups follow from it, also when rows are divided behind that.
TEST(ModelLayout, KeepsTheAxesThatDivideInputs) {
  const torch::nn::Linear linear(3, 2);
  const ModelLayout layout = whole_layout(*linear, Mesh({.dp_shard = 2, .cp = 2}));
  const ModelLayout divided = layout.with_inputs({kCp});
  EXPECT_TRUE(layout.divides().empty());
  EXPECT_EQ(divided.divides(), AxisSet{kCp});
  EXPECT_TRUE(divided.cuts().empty());
  EXPECT_EQ(divided.with_inputs({kSp}).divides(), (AxisSet{kCp, kSp}));
  const ModelLayout sharded = divided.with_rows({"weight"}, {kDpShard, kCp});
  EXPECT_EQ(sharded.divides(), AxisSet{kCp});
  EXPECT_TRUE(sharded.cuts().empty());
}

TEST(ModelLayout, RefusesPlacementsThatOverlapOrLeaveAHole) {
  const Mesh mesh({.pp = 2, .dp_shard = 2, .tp = 2});
  const auto refused = [&mesh](std::vector<TensorPlacement> placements) {
    return value_error_of([&] { ModelLayout(mesh, std::move(placements)); });
  };
  EXPECT_THAT(refused({{.name = "w", .shape = {4, 2}}, {.name = "w", .shape = {3, 2}}}),
              AllOf(HasSubstr("two placements of \"w\""), HasSubstr("[0:4, 0:2] and [0:3, 0:2]"),
                    HasSubstr("overlap")));
  EXPECT_THAT(refused({{.name = "w", .shape = {4}, .stages = {1, 1}}}),
              AllOf(HasSubstr("\"w\""), HasSubstr("stages 1, 1 overlap in [0:4]")));
  EXPECT_THAT(refused({{.name = "w", .shape = {9, 2}, .cuts = {{.dim = 0, .blocks = {4, 4}}}}}),
              AllOf(HasSubstr("\"w\" leaves a hole"), HasSubstr("[8:9, 0:2] of [0:9, 0:2]")));
  EXPECT_THAT(refused({{.name = "w", .shape = {7, 2}, .cuts = {{.dim = 0, .blocks = {4, 4}}}}}),
              AllOf(HasSubstr("\"w\""), HasSubstr("[4:8, 0:2] reaches beyond")));
  EXPECT_THAT(
      refused({{.name = "w", .shape = {4, 2}, .cuts = {{.dim = 0}, {.dim = 1}}}}),
      AllOf(HasSubstr("\"w\" leaves a hole: tp cuts it twice"), HasSubstr("all of [0:2, 1:2]")));
  EXPECT_THAT(refused({{.name = "w", .shape = {4, 2}, .cuts = {{.dim = 0}, {.dim = 0}}}}),
              AllOf(HasSubstr("\"w\" leaves a hole: tp cuts it twice, along dims 0 and 0"),
                    HasSubstr("all of [0:2, 0:2]")));
}

TEST(ModelLayout, RefusesWhatTheMeshOrTheTensorDoesNotHave) {
  const Mesh mesh({.pp = 2, .dp_shard = 2, .tp = 2});
  const auto refused = [&mesh](TensorPlacement placement) {
    return value_error_of([&] { ModelLayout(mesh, {std::move(placement)}); });
  };
  EXPECT_THAT(refused({.name = "w", .shape = {4}, .cuts = {{.dim = 1}}}),
              HasSubstr("a cut along dim 1 of a tensor with 1 dims"));
  EXPECT_THAT(refused({.name = "w", .shape = {4}, .cuts = {{.axis = kPp}}}),
              HasSubstr("not along pp"));
  EXPECT_THAT(refused({.name = "w", .shape = {4}, .cuts = {{.axis = kDp}}}),
              HasSubstr("not along dp"));
  EXPECT_THAT(refused({.name = "w", .shape = {4}, .cuts = {{.dim = 0, .blocks = {4, 0}}}}),
              HasSubstr("a block of dim 0 is 0 long"));
  EXPECT_THAT(refused({.name = "w", .shape = {4}, .cuts = {{.dim = 0}}, .rows = {kTp}}),
              HasSubstr("rows are divided along tp, and cuts are along tp"));
  EXPECT_THAT(refused({.name = "w", .shape = {4}, .cuts = {{.dim = 0, .copies = 3}}}),
              HasSubstr("a part for 3 of the 2 ranks along tp each"));
  EXPECT_THAT(refused({.name = "w", .shape = {4}, .rows = {kPp}}),
              HasSubstr("rows are divided along pp"));
  EXPECT_THAT(refused({.name = "w", .shape = {4}, .stages = {2}}), HasSubstr("stages 2 of 2"));
  EXPECT_THAT(refused({.name = "w", .shape = {4}, .cuts = {{.dim = 0}}, .sums = {kTp}}),
              HasSubstr("summed along tp, which cuts the tensor"));
  EXPECT_THAT(refused({.name = "w", .shape = {4}, .sums = {kPp}}),
              HasSubstr("summed along pp, for which a placement has stages"));
  EXPECT_THAT(refused({.name = "w",
                       .shape = {4},
                       .cuts = {{.axis = kTp, .blocks = {2, 2}}, {.axis = kCp, .blocks = {4}}}}),
              HasSubstr("tp and cp cut dim 0 in different blocks"));
}

// ---- Layouts at random.

class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}
  int below(int bound) { return static_cast<int>(engine_() % static_cast<uint64_t>(bound)); }
  bool happens(int of) { return below(of) == 0; }

 private:
  std::mt19937_64 engine_;
};

Mesh random_mesh(Draw& draw) {
  MeshSizes sizes;
  int left = 8;
  for (int* size :
       {&sizes.tp, &sizes.dp_shard, &sizes.pp, &sizes.dp_replicate, &sizes.cp, &sizes.sp}) {
    const int wanted = 1 + draw.below(4);
    if (wanted > left) continue;
    *size = wanted;
    left /= wanted;
  }
  return Mesh(sizes, draw.happens(2) ? PpPlacement::kInsideDpReplicate : PpPlacement::kOutermost);
}

TensorPlacement random_placement(Draw& draw, const Mesh& mesh, std::string name) {
  TensorPlacement placement = {.name = std::move(name)};
  std::vector<std::vector<int64_t>> blocks(static_cast<size_t>(draw.below(4)));
  for (std::vector<int64_t>& of_dim : blocks) {
    const int64_t length = draw.below(7);
    placement.shape.push_back(length);
    if (!draw.happens(3)) continue;
    for (int64_t left = length; left > 0; left -= of_dim.back()) {
      of_dim.push_back(1 + draw.below(static_cast<int>(left)));
    }
  }
  for (const MeshAxis axis : {kTp, kCp, kSp, kDpReplicate, kDpShard}) {
    if (draw.happens(3)) continue;  // equal along it
    if (blocks.empty() || draw.happens(3)) {
      placement.rows |= AxisSet{axis};
      continue;
    }
    const int dim = draw.below(static_cast<int>(blocks.size()));
    const int copies = draw.happens(4) ? 1 + draw.below(mesh.size(axis)) : 1;
    placement.cuts.push_back({.axis = axis,
                              .dim = dim,
                              .blocks = blocks[static_cast<size_t>(dim)],
                              .copies = mesh.size(axis) % copies == 0 ? copies : 1});
  }
  if (!draw.happens(3)) return placement;
  for (int stage = mesh.size(kPp); stage-- > 0;) {
    if (draw.happens(2)) placement.stages.push_back(stage);
  }
  return placement;
}

void for_each_element(const Box& box, const std::vector<int64_t>& shape,
                      const std::function<void(size_t element)>& use) {
  std::vector<int64_t> index = box.offsets;
  for (int64_t left = box.numel(); left > 0; --left) {
    int64_t element = 0;
    for (size_t dim = 0; dim < shape.size(); ++dim) element = element * shape[dim] + index[dim];
    use(static_cast<size_t>(element));
    for (size_t dim = shape.size(); dim-- > 0;) {
      if (++index[dim] < box.offsets[dim] + box.lengths[dim]) break;
      index[dim] = box.offsets[dim];
    }
  }
}

bool are_all_one(const std::vector<int>& counts) {
  return std::ranges::all_of(counts, [](int count) { return count == 1; });
}

// The shape of the tensor that the rank trains.
std::vector<int64_t> part_shape(const TensorPlacement& placement, const Mesh& mesh, int rank) {
  std::vector<int64_t> shape = cut_shape(placement, mesh, rank);
  if (shape.empty()) return shape;
  shape[0] =
      shard_rows(shape[0], mesh.size(placement.rows), mesh.coordinate(rank, placement.rows)).count;
  return shape;
}

// What is wrong with the boxes of all ranks; empty: nothing. The ranks that differ along the axes
// that cut the tensor, or divide its rows, have each element once.
std::string fault_of(const ModelLayout& layout, const TensorPlacement& placement) {
  const Mesh& mesh = layout.mesh();
  const auto numel = static_cast<size_t>(whole_box(placement.shape).numel());
  const size_t num_stages = std::max<size_t>(1, placement.stages.size());
  int copies = mesh.size(placement.equal());
  for (const Cut& cut : placement.cuts) copies *= cut.copies;
  std::vector<int> seen(static_cast<size_t>(copies) * num_stages * numel);
  std::map<int, std::vector<PlacedBox>> by_number;
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    const std::vector<PlacedBox> boxes = boxes_in(layout, placement.name, rank);
    int number = mesh.coordinate(rank, placement.equal());
    for (const Cut& cut : placement.cuts) {
      number = number * cut.copies + mesh.coordinate(rank, cut.axis) % cut.copies;
    }
    auto copy = static_cast<size_t>(number) * num_stages;
    if (!placement.stages.empty()) {
      const auto stage = std::ranges::find(placement.stages, mesh.coordinate(rank, kPp));
      if (stage == placement.stages.end()) {
        if (!boxes.empty()) return absl::StrCat("rank ", rank, " has a part of another stage's");
        if (part_number(placement, mesh, rank) != -1) return "a rank has a number without a part";
        continue;
      }
      copy += static_cast<size_t>(stage - placement.stages.begin());
    }
    const int part_of_rank = part_number(placement, mesh, rank);
    if (by_number.try_emplace(part_of_rank, boxes).first->second != boxes) {
      return absl::StrCat("the boxes of rank ", rank, " are not those of its part's number");
    }
    const std::vector<int64_t> shape = part_shape(placement, mesh, rank);
    std::vector<int> part;
    if (!shape.empty()) part.resize(static_cast<size_t>(whole_box(shape).numel()));
    for (const PlacedBox& box : boxes) {
      if (box.whole.lengths != box.part.lengths) return "a box has two sizes";
      for_each_element(box.whole, placement.shape,
                       [&](size_t element) { ++seen[copy * numel + element]; });
      if (shape.empty()) continue;
      for_each_element(box.part, shape, [&](size_t element) { ++part.at(element); });
    }
    if (!are_all_one(part)) return absl::StrCat("the boxes of rank ", rank, " are not its part");
  }
  if (by_number.begin()->first != 0 ||
      static_cast<int>(by_number.size()) != num_parts(placement, mesh) ||
      by_number.rbegin()->first != num_parts(placement, mesh) - 1) {
    return "the numbers of parts are not those below their count";
  }
  if (!are_all_one(seen)) return "an element is nowhere, or twice among ranks with other parts";
  std::vector<int> owned(numel);
  for (const int rank : owners(layout, placement.name)) {
    for (const PlacedBox& box : boxes_in(layout, placement.name, rank)) {
      for_each_element(box.whole, placement.shape, [&](size_t element) { ++owned[element]; });
    }
  }
  return are_all_one(owned) ? "" : "the owners' parts are not the tensor";
}

TEST(ModelLayout, CoversTensorsExactlyWhateverCutsThem) {
  int64_t cut = 0;
  for (uint64_t seed = 1; seed <= 10000; ++seed) {
    Draw draw(seed);
    const Mesh mesh = random_mesh(draw);
    std::vector<TensorPlacement> placements;
    for (int i = 0; i < 40; ++i) {
      placements.push_back(random_placement(draw, mesh, absl::StrCat("tensor ", i)));
    }
    const ModelLayout layout(mesh, std::move(placements));
    for (const TensorPlacement& placement : layout.placements()) {
      ASSERT_EQ(fault_of(layout, placement), "")
          << "seed " << seed << ", " << mesh.to_string() << ", " << placement.name << ": "
          << placement.text(mesh);
      cut += owners(layout, placement.name).size() > 1 ? 1 : 0;
    }
  }
  EXPECT_GT(cut, 100000);
}

}  // namespace
}  // namespace accelerate
