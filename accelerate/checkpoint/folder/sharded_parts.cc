#include "accelerate/checkpoint/folder/sharded_parts.h"

#include <algorithm>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "accelerate/base/constants.h"
#include "accelerate/base/shard_rows.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/safetensors.h"

namespace accelerate::internal {
namespace {

constexpr char kReplicated[] = "replicated";

// The name of a part whose file has this name.
std::string part_name(const std::string& folder, const std::string& file) {
  return in_folder(folder, std::string(absl::StripSuffix(file, ".safetensors")));
}

void keep_rows(Box& box, const ShardRows& rows) {
  box.offsets[0] += rows.first;
  box.lengths[0] = rows.count;
}

// The ranks that write the boxes which all of these have.
std::vector<int> writing(const std::vector<int>& ranks, const PlacedPart& place) {
  return place.copies_differ ? std::vector{ranks.front()} : ranks;
}

// What one of several ranks with the same boxes of a tensor writes of them.
std::vector<WrittenBox> boxes_of_copy(const std::string& name, const std::vector<PlacedBox>& boxes,
                                      size_t copies, size_t copy) {
  std::vector<WrittenBox> written;
  for (const PlacedBox& box : boxes) {
    const bool has_dims = !box.whole.lengths.empty();
    const ShardRows rows = shard_rows(has_dims ? box.whole.lengths[0] : 1,
                                      static_cast<int64_t>(copies), static_cast<int64_t>(copy));
    if (rows.count == 0) continue;
    WrittenBox& own = written.emplace_back(WrittenBox{name, box.whole, box.part});
    if (has_dims) {
      keep_rows(own.whole, rows);
      keep_rows(own.part, rows);
    }
    if (boxes.size() > 1) own.key += box_text(own.whole);
  }
  return written;
}

}  // namespace

RankShardPlan::RankShardPlan(std::vector<int64_t> disks, int rank, const ShardPlaces& shards)
    : disks_(std::move(disks)), rank_(rank), mesh_(shards.mesh()), rows_(shards.rows()) {}

const RankShardPlan::Ranks& RankShardPlan::ranks_of(const TensorPlacement& placement,
                                                    const Mesh& mesh) const {
  const AxisSet axes = placement.cut_axes();
  std::map<MeshAxis, int> copies;
  for (const Cut& cut : placement.cuts) {
    if (cut.copies > 1) copies.emplace(cut.axis, cut.copies);
  }
  for (const Division& each : divisions_) {
    if (each.axes == axes && each.copies == copies && each.stages == placement.stages) {
      return each.ranks;
    }
  }
  const int64_t own_disk = disks_[static_cast<size_t>(rank_)];
  const auto parts = static_cast<size_t>(num_parts(placement, mesh));
  std::vector<int64_t> disks(parts, -1);
  std::vector<int> part_of_rank;
  for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
    part_of_rank.push_back(part_number(placement, mesh, rank));
    if (part_of_rank.back() < 0) continue;
    int64_t& disk = disks[static_cast<size_t>(part_of_rank.back())];
    const int64_t other = disks_[static_cast<size_t>(rank)];
    if (disk < 0 || other == own_disk) disk = other;
  }
  Ranks ranks(parts);
  for (size_t rank = 0; rank < part_of_rank.size(); ++rank) {
    if (part_of_rank[rank] < 0) continue;
    const auto part = static_cast<size_t>(part_of_rank[rank]);
    if (disks_[rank] == disks[part]) ranks[part].push_back(static_cast<int>(rank));
  }
  return divisions_
      .emplace_back(Division{axes, std::move(copies), placement.stages, std::move(ranks)})
      .ranks;
}

ShardWriters RankShardPlan::writers() const {
  ShardWriters writers;
  if (!rows_) return writers;
  for (const std::vector<int>& ranks : ranks_of({.rows = *rows_}, mesh_)) {
    std::vector<std::string>& files = writers.emplace_back();
    for (const int rank : ranks) files.push_back(sharded_file_name(rank));
  }
  return writers;
}

std::vector<TensorShard> RankShardPlan::listed(const std::string& name,
                                               const PlacedPart& place) const {
  std::vector<TensorShard> shards;
  for (const std::vector<int>& all : ranks_of(place.placement, place.mesh)) {
    const std::vector<int> ranks = writing(all, place);
    const std::vector<PlacedBox> boxes = boxes_of(place.placement, place.mesh, ranks.front());
    for (size_t copy = 0; copy < ranks.size(); ++copy) {
      for (WrittenBox& box : boxes_of_copy(name, boxes, ranks.size(), copy)) {
        shards.push_back(
            {sharded_file_name(ranks[copy]), std::move(box.key), std::move(box.whole)});
      }
    }
  }
  return shards;
}

std::vector<WrittenBox> RankShardPlan::own(const std::string& name, const PlacedPart& place) const {
  const int part = part_number(place.placement, place.mesh, rank_);
  if (part < 0) return {};
  const std::vector<int> ranks =
      writing(ranks_of(place.placement, place.mesh)[static_cast<size_t>(part)], place);
  const auto copy = static_cast<size_t>(std::ranges::find(ranks, rank_) - ranks.begin());
  if (copy == ranks.size()) return {};
  return boxes_of_copy(name, place.boxes(), ranks.size(), copy);
}

std::string sharded_folder(const std::string& name, size_t index) {
  return absl::StrCat(name, "_", index);
}

std::vector<CheckpointPart> sharded_parts(const ShardedObject& object, const RankShardPlan& plan,
                                          bool writes_shared) {
  const bool is_optimizer = object.root == kOptimizerName;
  CheckpointPart own{.name = part_name(object.folder, sharded_file_name(plan.rank())),
                     .is_optimizer = is_optimizer,
                     .is_shard = true};
  CheckpointPart replicated{.name = part_name(object.folder, kReplicated),
                            .is_optimizer = is_optimizer};
  ShardedMetadata metadata{.world_size = plan.world_size(), .root = object.root};
  for (size_t i = 0; i < object.state.tensors.size(); ++i) {
    const auto& [name, tensor] = object.state.tensors[i];
    ShardedTensor& described = metadata.tensors[name];
    described.dtype = value_or_throw(safetensors_dtype(tensor.scalar_type()));
    if (object.places[i]) {
      const PlacedPart& place = *object.places[i];
      described.shape = place.shape();
      described.by_rows = plan.is_by_rows(place);
      if (writes_shared && !described.by_rows) described.shards = plan.listed(name, place);
      for (WrittenBox& box : plan.own(name, place)) {
        own.state.tensors.emplace_back(std::move(box.key), place.view(tensor, box.part));
      }
      continue;
    }
    described.shape = tensor.sizes().vec();
    described.shards = {
        {absl::StrCat(kReplicated, ".safetensors"), name, whole_box(described.shape)}};
    replicated.state.tensors.emplace_back(name, tensor);
  }
  std::vector<CheckpointPart> parts;
  if (!own.state.tensors.empty()) parts.push_back(std::move(own));
  if (!writes_shared) return parts;
  if (!replicated.state.tensors.empty()) parts.push_back(std::move(replicated));
  metadata.writers = plan.writers();
  if (!object.state.values.is_null()) metadata.values = object.state.values.dump();
  parts.push_back(
      {.name = part_name(object.folder, "metadata"),
       .state = {.values = nlohmann::ordered_json::parse(sharded_metadata_text(metadata))}});
  return parts;
}

}  // namespace accelerate::internal
