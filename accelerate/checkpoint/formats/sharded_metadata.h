/// The contents of a folder of shards: the `metadata.json` of a model or an optimizer of which each
/// rank wrote its own part.
///
///     {"format": "accelerate-sharded", "version": 1, "world_size": 2, "root": "model",
///      "tensors": {"fc.weight": {"dtype": "F32", "shape": [4, 3], "shards": [
///        {"file": "shard_00000.safetensors", "key": "fc.weight", "offsets": [0, 0],
///         "lengths": [2, 3]},
///        {"file": "shard_00001.safetensors", "key": "fc.weight", "offsets": [2, 0],
///         "lengths": [2, 3]}]}}}
///
/// A shard is a box of its tensor; a tensor's boxes cover it exactly. `root` ("model" or
/// "optimizer", may be missing) is the owner of the tensors; names do not contain it. Needs no
/// LibTorch, and trusts no file.
///
/// Errors:  absl::DataLoss naming the tensor and the problem.
/// Threads: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace accelerate {

inline constexpr char kShardedMetadataFile[] = "metadata.json";

struct TensorShard {
  /// In the metadata's folder.
  std::string file;
  /// Its name there.
  std::string key;
  /// The box's first index and its length, per dim.
  std::vector<int64_t> offsets;
  std::vector<int64_t> lengths;
};

struct ShardedTensor {
  /// By its safetensors name.
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<TensorShard> shards;
};

struct ShardedMetadata {
  int64_t world_size = 1;
  std::string root;
  std::map<std::string, ShardedTensor> tensors;
};

/// "shard_00003.safetensors".
std::string sharded_file_name(int64_t rank);

std::string sharded_metadata_text(const ShardedMetadata& metadata);

/// Its result is valid: see check_sharded_metadata.
absl::StatusOr<ShardedMetadata> parse_sharded_metadata(absl::string_view text);

/// Whether all boxes lie within their tensors, do not overlap and leave nothing out, and all names
/// and dtypes are possible.
absl::Status check_sharded_metadata(const ShardedMetadata& metadata);

}  // namespace accelerate
