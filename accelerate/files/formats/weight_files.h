/// The files of a model's weights in a folder: their names, which tensors go into which file, the
/// index, finding them, and replacing them.
///
/// One file is `model.safetensors`; several are `model-00001-of-00003.safetensors`, ..., and beside
/// them the index `model.safetensors.index.json`, which holds the file of each tensor. An index is
/// not trusted: files must be plain names in the index's own folder. Needs no LibTorch.
///
/// Errors:  absl::Status: InvalidArgument for an argument; DataLoss naming what is wrong, and the
///          file; the FileSystem's.
/// Threads: any.
/// Mirrors: huggingface_hub, split_torch_state_dict_into_shards, parse_size_to_int and the index
///          that save_torch_state_dict writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/platform/file_system.h"

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
/// being filled.
ShardPlan plan_shards(const std::vector<int64_t>& tensor_bytes, int64_t max_shard_bytes);

/// Whether a file is called as a shard is, of any number.
bool is_shard_file_name(absl::string_view file);

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
/// "x.new.safetensors". An index may name it for a while; see replace_weights.
std::string aside_name(const std::string& file);
/// Empty for a file that is not written aside.
std::string name_of_aside(const std::string& file);

struct WeightFile {
  std::string path;
  /// Its tensors according to the index, in order; empty without an index.
  std::vector<std::string> tensors;
};

struct WeightFiles {
  /// By name.
  std::vector<WeightFile> files;
  bool has_index = false;
  std::string index_path;
};

/// The files of a model's checkpoint, found from what a user names: a file with weights, an index
/// (`*.index.json`), or a folder with `model.safetensors`, else one `*.safetensors.index.json`,
/// else `pytorch_model.bin`, else one other `*.index.json`. Every file of the result exists. Local.
/// Errors: NotFound for a missing path or one with nothing to load, InvalidArgument for a folder
///         with several candidates, DataLoss for an index that is damaged or does not fit its
///         files. They name the path.
absl::StatusOr<WeightFiles> find_weight_files(FileSystem& files, const std::string& checkpoint);

/// Checks that a file holds exactly the tensors that the index lists. `in_file`: those that it has.
absl::Status check_weight_file(const WeightFile& file, const std::vector<std::string>& in_file);

namespace internal {

/// Writes a file with some of the tensors the plan was made for, and syncs it.
using WriteShard =
    std::function<absl::Status(const std::string& path, const std::vector<size_t>& tensors)>;

/// Replaces the weights in a folder, which is made where there is none. `names` are those of the
/// plan's tensors. Local.
///
/// A save may be interrupted anywhere, by anything: find_weight_files then finds the old weights or
/// the new ones, complete. All new files are written under temporary names ("aside") and synced;
/// then
///   one file:     it takes its name, which has priority over any index there;
///   other shards: they take their names, then the index its own, then an old single file goes;
///   shards with the old ones' names: the index names the new files aside, which commits them; then
///     they take their names one by one (a reader that finds the file aside gone opens the final
///     name instead), and the index is written again.
/// Files of earlier saves are removed last.
/// Errors:  the FileSystem's; the old weights stay unless the new ones were committed before.
/// Threads: one at a time for a folder, without readers meanwhile.
absl::Status replace_weights(FileSystem& files, const std::string& directory, const ShardPlan& plan,
                             const std::vector<std::string>& names, const WriteShard& write);

}  // namespace internal
}  // namespace accelerate
