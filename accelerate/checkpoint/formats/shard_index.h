/// The index of a sharded checkpoint: `model.safetensors.index.json`, which says where each tensor
/// is.
///
/// An index is never trusted: names of files are plain ones, in the index's own folder.
///
/// Errors:  absl::DataLoss naming what is wrong, and the file where one is read.
/// Threads: any.
/// Mirrors: huggingface_hub, the index that save_torch_state_dict writes.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/platform/file_system.h"

namespace accelerate {

struct ShardIndex {
  /// Bytes of all tensors; 0 where the index does not say.
  int64_t total_size = 0;
  /// The file of each tensor, by name.
  std::map<std::string, std::string> weight_map;
};

/// Names in order, two spaces a level, a newline at the end.
std::string shard_index_text(const ShardIndex& index);

absl::StatusOr<ShardIndex> parse_shard_index(absl::string_view text);
absl::StatusOr<ShardIndex> read_shard_index(FileSystem& files, const std::string& path);

/// A file that is written aside before it takes the place of `file`: "x.safetensors" is first
/// "x.new.safetensors". An index may name it for a while; see save_model.h.
std::string aside_name(const std::string& file);
/// Empty for a file that is not written aside.
std::string name_of_aside(const std::string& file);

}  // namespace accelerate
