/// The parts of a checkpoint that ranks have divided among them: each rank's file with its boxes,
/// and what one rank (or one of each node) writes for all, which is `metadata.json` and the tensors
/// that all ranks have alike. No rank asks another one for anything: whoever knows the ranks'
/// places, and the names and shapes of the parameters, knows every rank's boxes.
///
///   pytorch_model_fsdp_0/metadata.json             see sharded_metadata.h
///   pytorch_model_fsdp_0/shard_00000.safetensors   rank 0's boxes
///   pytorch_model_fsdp_0/replicated.safetensors    buffers; an optimizer's undivided state
///   optimizer_0/...                                the same for an optimizer
///
/// Ranks with the same shard, as those of other replicas, divide its rows among them once more.
/// Where nodes have disks of their own, those on one disk do so.
/// Threads: values. All is local.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/base/shard_rows.h"
#include "accelerate/checkpoint/folder/checkpoint_parts.h"
#include "accelerate/checkpoint/folder/rank_place.h"
#include "accelerate/checkpoint/objects/sharded_state_dict.h"
#include "accelerate/files/formats/sharded_metadata.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate::internal {

/// Who writes which rows.
class ShardPlan {
 public:
  /// `places`: of all ranks.
  ShardPlan(std::vector<RankPlace> places, int rank);

  /// The files of each shard's rows that ranks on this rank's disk refer to: those on the disk,
  /// where it has the shard; otherwise those of the first disk that does.
  ShardWriters writers() const;

  /// The part of this rank's `rows` rows that it writes.
  ShardRows own_rows(int64_t rows) const { return shard_rows(rows, copies_, copy_); }

  int64_t world_size() const { return static_cast<int64_t>(places_.size()); }
  int rank() const { return rank_; }

 private:
  std::vector<RankPlace> places_;
  int rank_ = 0;
  // The ranks on this rank's disk that have its shard, and which of them it is.
  int64_t copies_ = 0;
  int64_t copy_ = 0;
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
  std::vector<std::optional<ShardPlace>> places;
};

/// This rank's parts of the object; with `writes_shared` also those that are for all ranks.
std::vector<CheckpointPart> sharded_parts(const ShardedObject& object, const ShardPlan& plan,
                                          bool writes_shared);

}  // namespace accelerate::internal
