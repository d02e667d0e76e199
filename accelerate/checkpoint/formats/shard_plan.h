/// Which tensors of a model go into which file, and what the files are called.
///
/// One file is `model.safetensors`; several are `model-00001-of-00003.safetensors`, ..., and
/// `model.safetensors.index.json` beside them (see shard_index.h). Nothing here needs LibTorch.
///
/// Errors:  absl::InvalidArgument.
/// Threads: pure functions.
/// Mirrors: huggingface_hub, split_torch_state_dict_into_shards and parse_size_to_int.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace accelerate {

/// Bytes: a number, which may have a fraction, an exponent or a sign, and TB, GB, MB or KB (powers
/// of 1000) in any case. Fractions of a byte are cut off. It is not the parser of memory limits,
/// see convert_file_size_to_int.
absl::StatusOr<int64_t> parse_shard_size(absl::string_view text);

struct ShardPlan {
  struct Shard {
    std::string file;
    /// Positions in the list that the plan was made for, ascending.
    std::vector<size_t> tensors;
  };
  /// At least one.
  std::vector<Shard> shards;
  int64_t total_bytes = 0;

  bool is_sharded() const { return shards.size() > 1; }
  /// The file of each tensor, by its position.
  std::vector<std::string> files() const;
};

/// Fills files in the order of the tensors: what would make a file larger than `max_shard_bytes`
/// begins the next one, and a tensor that is larger has a file to itself, before the one that is
/// being filled. `prefix`: as in "model".
ShardPlan plan_shards(const std::vector<int64_t>& tensor_bytes, int64_t max_shard_bytes,
                      const std::string& prefix = "model");

/// "model.safetensors" and "model.safetensors.index.json".
std::string single_file_name(const std::string& prefix);
std::string index_file_name(const std::string& prefix);
/// As in "model-00002-of-00003.safetensors", of which 2 is the `number`.
std::string shard_file_name(const std::string& prefix, size_t number, size_t count);
/// Whether a file is called as a shard is, of any number.
bool is_shard_file_name(const std::string& prefix, const std::string& file);

}  // namespace accelerate
