/// The contents of a folder of shards: the `metadata.json` of a model or an optimizer of which each
/// rank wrote its own part.
///
///     {"format": "accelerate-sharded", "version": 1, "world_size": 2, "root": "model",
///      "writers": [["shard_00000.safetensors"], ["shard_00001.safetensors"]],
///      "tensors": {
///        "fc.weight": {"dtype": "F32", "shape": [4, 3], "shards": "rows"},
///        "fc.scale": {"dtype": "F32", "shape": [4, 3], "shards": [
///          {"file": "shard_00000.safetensors", "key": "fc.scale", "offsets": [0, 0],
///           "lengths": [4, 2]},
///          {"file": "shard_00001.safetensors", "key": "fc.scale", "offsets": [0, 2],
///           "lengths": [4, 1]}]}}}
///
/// A shard is a box of its tensor; a tensor's boxes cover it exactly. Where ranks divided it by
/// rows (see base/shard_rows.h) its shards are not listed one by one, so that the file does not
/// grow with the number of tensors times that of ranks: `writers` has, for each part of the rows,
/// the files that have it; of several files, in which replicas of the model wrote, each has a part
/// of that part, divided alike. The tensor has its own name there, and is not in files for which
/// there is no row. A tensor without dims has one row. `root` ("model" or "optimizer", may be
/// missing) is the owner of the tensors; names do not contain it. `values`, which may be missing,
/// is what the owner has besides tensors, as JSON text. Needs no LibTorch, and trusts no file.
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
#include "accelerate/files/formats/boxes.h"
#include "accelerate/files/formats/safetensors_header.h"

namespace accelerate {

inline constexpr char kShardedMetadataFile[] = "metadata.json";

struct TensorShard {
  /// In the metadata's folder.
  std::string file;
  /// Its name there.
  std::string key;
  Box box;
};

struct ShardedTensor {
  /// By its safetensors name.
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<TensorShard> shards = {};
  /// The writers have it by rows, and `shards` is empty.
  bool by_rows = false;
};

/// The files of each part of the rows.
using ShardWriters = std::vector<std::vector<std::string>>;

struct ShardedMetadata {
  int64_t world_size = 1;
  std::string root;
  std::map<std::string, ShardedTensor> tensors;
  ShardWriters writers = {};
  /// JSON text; empty: none.
  std::string values = {};
};

/// "shard_00003.safetensors".
std::string sharded_file_name(int64_t rank);

std::string sharded_metadata_text(const ShardedMetadata& metadata);

/// Its result is valid: see check_sharded_metadata.
absl::StatusOr<ShardedMetadata> parse_sharded_metadata(absl::string_view text);

/// Whether all boxes lie within their tensors, do not overlap and leave nothing out, and all names
/// and dtypes are possible.
absl::Status check_sharded_metadata(const ShardedMetadata& metadata);

/// The shards of a tensor that have elements of the box, in order. \pre The metadata is valid, has
/// a tensor of that name, and the box is in it.
std::vector<TensorShard> shards_within(const ShardedMetadata& metadata, const std::string& name,
                                       const Box& box);
/// Those of the whole tensor; among shards that are listed, also empty ones.
std::vector<TensorShard> shards_of(const ShardedMetadata& metadata, const std::string& name);

/// Whether a file has the shards that it should have, with their dtypes and sizes, and no others.
/// Errors do not name the file.
absl::Status check_shard_file(const ShardedMetadata& metadata, const std::string& file,
                              const SafetensorsHeader& header);

}  // namespace accelerate
