#include "accelerate/files/formats/merge_weights.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "accelerate/base/constants.h"
#include "accelerate/base/document.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/status.h"
#include "accelerate/files/formats/boxes.h"
#include "accelerate/files/formats/safetensors_header.h"
#include "accelerate/files/formats/sharded_metadata.h"
#include "accelerate/files/formats/weight_files.h"

namespace accelerate {
namespace {

constexpr int64_t kBufferBytes = int64_t{8} << 20;

// The file that torch.distributed.checkpoint leaves in a folder beside its *.distcp.
constexpr char kDistributedMetadata[] = ".metadata";

// Whether a file begins as a zip or a pickle, which torch.save writes, and not with the length of a
// header below 4 GiB, as safetensors do.
bool is_pickled(const ReadableFile& file) {
  const std::string start = read_start(file, 8).value_or("");
  if (start.size() < 8 || start.ends_with(std::string_view("\0\0\0\0", 4))) return false;
  return start.starts_with("PK\x03\x04") || start.starts_with("\x80");
}

// An open file with shards.
struct Source {
  std::string path;
  std::unique_ptr<ReadableFile> file;
  SafetensorsHeader header;
  std::map<std::string, size_t> positions;  // in the header
};

absl::StatusOr<Source> open_source(FileSystem& files, const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, files.open(path));
  absl::StatusOr<SafetensorsHeader> header = read_safetensors_header(*file, path);
  if (!header.ok() && is_pickled(*file)) {
    return absl::UnimplementedError(
        absl::StrCat(path,
                     ": it is pickled, as torch.save does it, and only safetensors are merged: "
                     "read it with load_checkpoint_in_model or load_state_dict, and write it "
                     "with save_model"));
  }
  if (!header.ok()) return header.status();
  Source source{.path = path, .file = std::move(file), .header = *std::move(header)};
  for (size_t i = 0; i < source.header.tensors.size(); ++i) {
    source.positions.emplace(source.header.tensors[i].name, i);
  }
  return source;
}

// A checkpoint of which all is known, and nothing read, but the headers.
struct Checkpoint {
  ShardedMetadata metadata;
  std::map<std::string, Source> sources;  // by the shards' `file`
  /// The files to remove, the one that names the others first.
  std::vector<std::string> paths;
};

absl::StatusOr<Checkpoint> open_shards(FileSystem& files, const std::string& folder) {
  const std::string metadata_path = join_path(folder, kShardedMetadataFile);
  Checkpoint checkpoint{.paths = {metadata_path}};
  ACCELERATE_ASSIGN_OR_RETURN(checkpoint.metadata,
                              read_file_as(files, metadata_path, parse_sharded_metadata));
  for (const auto& [name, tensor] : checkpoint.metadata.tensors) {
    for (const TensorShard& shard : shards_of(checkpoint.metadata, name)) {
      if (checkpoint.sources.contains(shard.file)) continue;
      ACCELERATE_ASSIGN_OR_RETURN(Source source, open_source(files, join_path(folder, shard.file)));
      checkpoint.paths.push_back(source.path);
      checkpoint.sources.emplace(shard.file, std::move(source));
    }
  }
  for (const auto& [file, source] : checkpoint.sources) {
    ACCELERATE_RETURN_IF_ERROR(
        in_file(source.path, check_shard_file(checkpoint.metadata, file, source.header)));
  }
  return checkpoint;
}

absl::StatusOr<Checkpoint> open_weights(FileSystem& files, const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(const WeightFiles found, find_weight_files(files, path));
  Checkpoint checkpoint;
  if (found.has_index) checkpoint.paths.push_back(found.index_path);
  for (const WeightFile& file : found.files) {
    ACCELERATE_ASSIGN_OR_RETURN(Source source, open_source(files, file.path));
    std::vector<std::string> names;
    for (const SafetensorsEntry& entry : source.header.tensors) {
      names.push_back(entry.name);
      checkpoint.metadata.tensors[entry.name] = {
          .dtype = entry.dtype,
          .shape = entry.shape,
          .shards = {{file.path, entry.name, whole_box(entry.shape)}}};
    }
    if (found.has_index) {
      ACCELERATE_RETURN_IF_ERROR(check_weight_file(file, names));
    }
    checkpoint.paths.push_back(file.path);
    checkpoint.sources.emplace(file.path, std::move(source));
  }
  return checkpoint;
}

bool has_file(FileSystem& files, const std::string& folder, const char* name) {
  return exists(files, join_path(folder, name)).value_or(false);
}

// The folders that a save of a sharded model makes below or beside the named one.
std::string hint_for(FileSystem& files, const std::string& folder) {
  for (const std::string& base : {folder, parent_path(folder)}) {
    for (const char* name : {kFsdpModelName, kOptimizerName}) {
      const std::string candidate = join_path(base, absl::StrCat(name, "_0"));
      if (has_file(files, candidate, kShardedMetadataFile) ||
          has_file(files, candidate, kDistributedMetadata)) {
        return absl::StrCat("; did you mean ", candidate, "?");
      }
    }
  }
  return "";
}

absl::StatusOr<Checkpoint> open_checkpoint(FileSystem& files, const std::string& path) {
  if (has_file(files, path, kShardedMetadataFile)) return open_shards(files, path);
  absl::StatusOr<Checkpoint> checkpoint = open_weights(files, path);
  if (!absl::IsNotFound(checkpoint.status())) return checkpoint;
  if (has_file(files, path, kDistributedMetadata)) {
    return absl::UnimplementedError(
        absl::StrCat(path, " is of torch.distributed.checkpoint (", kDistributedMetadata,
                     ", *.distcp), which is pickled and cannot be merged here: `accelerate "
                     "merge-weights` of PyTorch's accelerate makes safetensors of it"));
  }
  return absl::NotFoundError(absl::StrCat(checkpoint.status().message(), hint_for(files, path)));
}

// Copies boxes into one file.
class ShardWriter {
 public:
  ShardWriter(WritableFile& file, const std::function<void(int64_t)>& progress)
      : file_(file), progress_(progress), buffer_(kBufferBytes) {}

  // `begin`: where the tensor's bytes are in the file.
  absl::Status write(const Source& source, const ShardedTensor& tensor, const TensorShard& shard,
                     int64_t begin) {
    const SafetensorsEntry& entry = source.header.tensors[source.positions.at(shard.key)];
    const int64_t bytes = entry.end - entry.begin;
    if (bytes == 0) return absl::OkStatus();
    const BoxRuns runs(tensor.shape, shard.box, safetensors_dtype_size(tensor.dtype));
    const int64_t from = source.header.data_offset + entry.begin;
    for (int64_t done = 0; done < bytes;) {
      const int64_t count = std::min(kBufferBytes, bytes - done);
      ACCELERATE_RETURN_IF_ERROR(source.file->read_at(from + done, span(0, count)));
      for (int64_t used = 0; used < count;) {
        const int64_t position = done + used;
        const int64_t in_run = position % runs.bytes();
        const int64_t piece = std::min(runs.bytes() - in_run, count - used);
        ACCELERATE_RETURN_IF_ERROR(file_.write_at(
            begin + runs.offset(position / runs.bytes()) + in_run, span(used, piece)));
        used += piece;
      }
      done += count;
      if (progress_) progress_(count);
    }
    return absl::OkStatus();
  }

 private:
  absl::Span<std::byte> span(int64_t offset, int64_t count) {
    return absl::MakeSpan(buffer_).subspan(offset, count);
  }

  WritableFile& file_;
  const std::function<void(int64_t)>& progress_;
  std::vector<std::byte> buffer_;
};

absl::Status write_contents(WritableFile& file, const Checkpoint& checkpoint,
                            SafetensorsHeader& header,
                            const std::function<void(int64_t)>& progress) {
  ACCELERATE_ASSIGN_OR_RETURN(const std::string start, lay_out_safetensors(header));
  ACCELERATE_RETURN_IF_ERROR(file.write_at(
      0, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(start.data()), start.size())));
  ShardWriter writer(file, progress);
  for (const SafetensorsEntry& entry : header.tensors) {
    const ShardedTensor& tensor = checkpoint.metadata.tensors.at(entry.name);
    for (const TensorShard& shard : shards_of(checkpoint.metadata, entry.name)) {
      ACCELERATE_RETURN_IF_ERROR(writer.write(checkpoint.sources.at(shard.file), tensor, shard,
                                              static_cast<int64_t>(start.size()) + entry.begin));
    }
  }
  return file.sync();
}

// Removes the files that were merged, except where a new file has taken the name.
absl::Status remove_merged(FileSystem& files, const std::string& folder,
                           const Checkpoint& checkpoint, const std::vector<std::string>& written) {
  for (const std::string& path : checkpoint.paths) {
    const std::string name = std::filesystem::path(path).filename().string();
    if (std::ranges::count(written, name) > 0) continue;
    const absl::Status removed = files.remove(path);
    if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  }
  const absl::StatusOr<FileInfo> info = files.info(folder);
  if (!info.ok() || !info->is_directory) return absl::OkStatus();
  const absl::StatusOr<std::vector<std::string>> rest = files.list(folder);
  if (!rest.ok() || !rest->empty()) return files.sync_directory(folder);
  const absl::Status removed = files.remove(folder);
  return removed.ok() ? files.sync_directory(parent_path(folder)) : removed;
}

std::string normal(const std::string& path) {
  std::string text = std::filesystem::path(path).lexically_normal().string();
  if (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

absl::Status write_merged(FileSystem& files, const std::string& path, const Checkpoint& checkpoint,
                          const std::vector<std::string>& names,
                          const std::function<void(int64_t)>& progress) {
  // As where one rank writes, the header has the other values of the owner.
  SafetensorsHeader header{.metadata = internal::state_metadata(checkpoint.metadata.values)};
  for (const std::string& name : names) {
    const ShardedTensor& tensor = checkpoint.metadata.tensors.at(name);
    header.tensors.push_back({.name = name, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  ACCELERATE_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, files.create(path));
  absl::Status written = write_contents(*file, checkpoint, header, progress);
  written.Update(file->close());
  return written;
}

// An optimizer's state is one file, optimizer.safetensors, or optimizer.json if it has no tensors.
absl::StatusOr<MergedWeights> merge_optimizer(FileSystem& files, const std::string& output_path,
                                              const Checkpoint& checkpoint,
                                              const MergeWeightsOptions& options) {
  if (options.max_shard_size) {
    return absl::InvalidArgumentError(
        "max_shard_size is for weights; the state of an optimizer is one file");
  }
  MergedWeights merged;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : checkpoint.metadata.tensors) {
    names.push_back(name);
    merged.bytes += whole_box(tensor.shape).numel() * safetensors_dtype_size(tensor.dtype);
  }
  merged.tensors = static_cast<int64_t>(names.size());
  merged.files = {absl::StrCat(kOptimizerName, names.empty() ? ".json" : ".safetensors")};
  const std::string path = join_path(output_path, merged.files[0]);
  if (names.empty()) {
    ACCELERATE_ASSIGN_OR_RETURN(const auto values, json_value(checkpoint.metadata.values,
                                                              {.name = "the optimizer's values"}));
    ACCELERATE_RETURN_IF_ERROR(
        write_file(files, path, internal::exact_json_text(values, 2) + "\n"));
    return merged;
  }
  ACCELERATE_RETURN_IF_ERROR(make_directories_durably(files, output_path));
  const std::string partial = files.temporary_name(path);
  absl::Status status = write_merged(files, partial, checkpoint, names, options.progress);
  if (status.ok()) status = files.rename(partial, path);
  if (status.ok()) status = files.sync_directory(output_path);
  if (!status.ok()) {
    files.remove(partial).IgnoreError();
    return status;
  }
  return merged;
}

absl::StatusOr<MergedWeights> merge_model(FileSystem& files, const std::string& output_path,
                                          const Checkpoint& checkpoint,
                                          const MergeWeightsOptions& options) {
  std::vector<std::string> names;
  std::vector<int64_t> sizes;
  for (const auto& [name, tensor] : checkpoint.metadata.tensors) {
    names.push_back(name);
    sizes.push_back(whole_box(tensor.shape).numel() * safetensors_dtype_size(tensor.dtype));
  }
  const ShardPlan plan =
      plan_shards(sizes, options.max_shard_size.value_or(std::numeric_limits<int64_t>::max()));
  const auto write = [&](const std::string& path, const std::vector<size_t>& positions) {
    std::vector<std::string> of_file;
    for (const size_t position : positions) of_file.push_back(names[position]);
    return write_merged(files, path, checkpoint, of_file, options.progress);
  };
  ACCELERATE_RETURN_IF_ERROR(internal::replace_weights(files, output_path, plan, names, write));
  MergedWeights merged{.tensors = static_cast<int64_t>(names.size()), .bytes = plan.total_bytes};
  for (const ShardPlan::Shard& shard : plan.shards) merged.files.push_back(shard.file);
  return merged;
}

}  // namespace

absl::StatusOr<MergedWeights> merge_weights(FileSystem& files, const std::string& checkpoint_dir,
                                            const std::string& output_path,
                                            const MergeWeightsOptions& options) {
  const std::string folder = normal(checkpoint_dir);
  if (folder == normal(output_path)) {
    return invalid("the merged weights cannot be in the checkpoint's own folder ", folder);
  }
  ACCELERATE_ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_checkpoint(files, folder));
  absl::StatusOr<MergedWeights> merged =
      checkpoint.metadata.root == kOptimizerName
          ? merge_optimizer(files, output_path, checkpoint, options)
          : merge_model(files, output_path, checkpoint, options);
  if (merged.ok() && options.remove_checkpoint_dir) {
    ACCELERATE_RETURN_IF_ERROR(remove_merged(files, folder, checkpoint, merged->files));
  }
  return merged;
}

}  // namespace accelerate
