/// The parts of a checkpoint that ranks have divided among them: each rank's file with its boxes,
/// and what one rank (or one of each node) writes for all, which is `metadata.json` and the tensors
/// that all ranks have alike. No rank asks another one for anything: every rank has the layouts of
/// the models, and so knows every rank's boxes of all tensors. Where ranks have stages of a
/// pipeline, they have told each other before what else differs (objects/sharded_state_dict.h).
///
///   pytorch_model_fsdp_0/metadata.json             see sharded_metadata.h
///   pytorch_model_fsdp_0/shard_00000.safetensors   rank 0's boxes
///   pytorch_model_fsdp_0/replicated.safetensors    buffers; an optimizer's undivided state
///   optimizer_0/...                                the same for an optimizer
///
/// Ranks with the same boxes, as those of other replicas, divide the rows of each among them once
/// more. Where nodes have disks of their own, those on one disk do so. Where a rank has several
/// boxes of a tensor, each box has the tensor's name and its own text in the file: "qkv[0:2, 0:6]".
/// Threads: values. All is local.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/base/mesh_axis.h"
#include "accelerate/checkpoint/folder/checkpoint_parts.h"
#include "accelerate/checkpoint/objects/placed_part.h"
#include "accelerate/checkpoint/objects/sharded_state_dict.h"
#include "accelerate/files/formats/boxes.h"
#include "accelerate/files/formats/sharded_metadata.h"
#include "accelerate/mesh/axis_set.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/parallel/layout/placement.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate::internal {

/// A box that a rank writes.
struct WrittenBox {
  /// Its name in the rank's file.
  std::string key;
  /// In the whole tensor, and in what the rank has of it.
  Box whole;
  Box part;
};

/// Who writes which boxes. Ranks on one disk refer to the files on that disk; of a part of a tensor
/// that no rank on the disk has, to those on the first disk that has it.
class RankShardPlan {
 public:
  /// `disks`: by rank the first rank that writes to its disk. `shards`: what this rank has of the
  /// models of the job.
  RankShardPlan(std::vector<int64_t> disks, int rank, const ShardPlaces& shards);

  /// The files of each part of the rows, as the metadata has them; empty where nothing is divided.
  ShardWriters writers() const;
  /// Whether its boxes are those of the writers, and need not be listed.
  bool is_by_rows(const PlacedPart& place) const {
    return place.is_by_rows() && rows_ == place.placement.rows;
  }
  /// All boxes of the tensor of that name, with their files.
  std::vector<TensorShard> listed(const std::string& name, const PlacedPart& place) const;
  /// Those that this rank writes.
  std::vector<WrittenBox> own(const std::string& name, const PlacedPart& place) const;

  int64_t world_size() const { return static_cast<int64_t>(disks_.size()); }
  int rank() const { return rank_; }

 private:
  // By part of a tensor: the ranks that write it.
  using Ranks = std::vector<std::vector<int>>;
  const Ranks& ranks_of(const TensorPlacement& placement, const Mesh& mesh) const;

  std::vector<int64_t> disks_;
  int rank_ = 0;
  Mesh mesh_;
  std::optional<AxisSet> rows_;
  // The same for all tensors that are divided along the same axes, into as many parts along each.
  struct Division {
    AxisSet axes;
    std::map<MeshAxis, int> copies;
    std::vector<int> stages;
    Ranks ranks;
  };
  mutable std::deque<Division> divisions_;
};

/// The folder of a model or an optimizer in a checkpoint: "optimizer_1".
std::string sharded_folder(const std::string& name, size_t index);

struct ShardedObject {
  /// In the checkpoint; empty: the checkpoint's own.
  std::string folder = {};
  /// "model" or "optimizer".
  std::string root;
  StateDict state;
  /// By tensor; absent for one that all ranks have alike.
  std::vector<std::optional<PlacedPart>> places;
};

/// This rank's parts of the object; with `writes_shared` also those that are for all ranks.
std::vector<CheckpointPart> sharded_parts(const ShardedObject& object, const RankShardPlan& plan,
                                          bool writes_shared);

}  // namespace accelerate::internal
