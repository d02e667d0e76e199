#include "accelerate/checkpoint/folder/sharded_parts.h"

#include <algorithm>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "accelerate/base/constants.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/safetensors.h"
#include "accelerate/files/safetensors_dtypes.h"

namespace accelerate::internal {
namespace {

constexpr char kReplicated[] = "replicated";

// The name of a part whose file has this name.
std::string part_name(const std::string& folder, const std::string& file) {
  return in_folder(folder, std::string(absl::StripSuffix(file, ".safetensors")));
}

// The rows that this rank writes of its shard; undefined if there are none.
at::Tensor own_part(const at::Tensor& shard, const ShardPlace& place, const ShardPlan& plan) {
  const ShardRows own = plan.own_rows(place.rows.count);
  if (own.count == 0) return {};
  if (place.shape.empty()) return shard.view(at::IntArrayRef());
  const at::Tensor rows = shard.narrow(0, own.first, own.count);
  return rows.numel() > 0 ? rows : at::Tensor();
}

}  // namespace

ShardPlan::ShardPlan(std::vector<RankPlace> places, int rank)
    : places_(std::move(places)), rank_(rank) {
  const RankPlace& own = places_[static_cast<size_t>(rank_)];
  for (size_t other = 0; other < places_.size(); ++other) {
    if (places_[other] != own) continue;
    if (static_cast<int>(other) < rank_) ++copy_;
    ++copies_;
  }
}

ShardWriters ShardPlan::writers() const {
  const int64_t own_disk = places_[static_cast<size_t>(rank_)].disk;
  ShardWriters writers;
  std::vector<int64_t> disks;  // of each shard
  for (const RankPlace& place : places_) {
    if (place.shard < 0) continue;
    if (place.shard >= static_cast<int64_t>(disks.size())) {
      disks.resize(static_cast<size_t>(place.shard) + 1, -1);
    }
    int64_t& disk = disks[static_cast<size_t>(place.shard)];
    if (disk < 0 || place.disk == own_disk) disk = place.disk;
  }
  writers.resize(disks.size());
  for (size_t rank = 0; rank < places_.size(); ++rank) {
    const auto& [shard, disk] = places_[rank];
    if (shard < 0 || disk != disks[static_cast<size_t>(shard)]) continue;
    writers[static_cast<size_t>(shard)].push_back(sharded_file_name(static_cast<int64_t>(rank)));
  }
  return writers;
}

std::string sharded_folder(const std::string& name, size_t index) {
  return absl::StrCat(name, "_", index);
}

std::vector<CheckpointPart> sharded_parts(const ShardedObject& object, const ShardPlan& plan,
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
      described.shape = object.places[i]->shape;
      described.by_rows = true;
      at::Tensor part = own_part(tensor, *object.places[i], plan);
      if (part.defined()) own.state.tensors.emplace_back(name, std::move(part));
      continue;
    }
    described.shape = tensor.sizes().vec();
    Box box = whole_box(described.shape);
    described.shards = {{.file = absl::StrCat(kReplicated, ".safetensors"),
                         .key = name,
                         .offsets = std::move(box.offsets),
                         .lengths = std::move(box.lengths)}};
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
