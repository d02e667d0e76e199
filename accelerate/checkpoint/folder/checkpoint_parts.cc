#include "accelerate/checkpoint/folder/checkpoint_parts.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/checksum.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/status.h"
#include "accelerate/comm/checkpoint_error.h"
#include "accelerate/files/formats/sharded_metadata.h"
#include "accelerate/files/safetensors.h"
#include "accelerate/runtime/shared_objects.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate {
namespace {

constexpr char kTensors[] = ".safetensors";
constexpr char kJson[] = ".json";

absl::Status check_depth(const nlohmann::ordered_json& values, const std::string& path) {
  if (!internal::is_value_too_deep(values)) return absl::OkStatus();
  return invalid("cannot write ", path, ": its values are nested in more than ",
                 internal::kMaxJsonDepth, " levels");
}

absl::StatusOr<ManifestFile> write_json(FileSystem& files, const std::string& path,
                                        const nlohmann::ordered_json& values) {
  ACCELERATE_RETURN_IF_ERROR(check_depth(values, path));
  std::string text;
  try {
    text = values.dump(2) + "\n";
  } catch (const nlohmann::json::exception& error) {
    return invalid("cannot write ", path, ": ", error.what());
  }
  ACCELERATE_RETURN_IF_ERROR(write_file(files, path, text));
  return ManifestFile{.size = static_cast<int64_t>(text.size()), .crc32c = internal::crc32c(text)};
}

absl::StatusOr<ManifestFile> write_tensors(FileSystem& files, const std::string& path,
                                           const StateDict& state,
                                           const std::function<void(int64_t)>& on_progress) {
  ACCELERATE_RETURN_IF_ERROR(check_depth(state.values, path));
  const std::string values = state.values.is_null() ? "" : state.values.dump();
  ACCELERATE_ASSIGN_OR_RETURN(
      WrittenFile written,
      write_safetensors(files, path, state.tensors, internal::state_metadata(values),
                        {.progress = on_progress}));
  return ManifestFile{.size = written.size,
                      .crc32c = written.crc32c,
                      .header = written.checksums.header,
                      .tensors = std::move(written.checksums.tensors)};
}

}  // namespace

std::string internal::in_folder(const std::string& folder, const std::string& name) {
  return folder.empty() ? name : absl::StrCat(folder, "/", name);
}

absl::StatusOr<std::map<std::string, ManifestFile>> write_parts(
    FileSystem& files, const std::string& folder, const std::vector<CheckpointPart>& parts,
    const std::function<void(int64_t)>& on_progress) {
  std::map<std::string, ManifestFile> written;
  for (const CheckpointPart& part : parts) {
    const bool has_tensors = part.is_model || !part.state.tensors.empty();
    const std::string name = part.name + (has_tensors ? kTensors : kJson);
    const std::string path = join_path(folder, name);
    if (absl::StrContains(name, '/')) {
      ACCELERATE_RETURN_IF_ERROR(make_directories_durably(files, parent_path(path)));
    }
    ACCELERATE_ASSIGN_OR_RETURN(ManifestFile file,
                                has_tensors ? write_tensors(files, path, part.state, on_progress)
                                            : write_json(files, path, part.state.values));
    if (part.is_shard) file.tensors.clear();
    written[name] = std::move(file);
  }
  return written;
}

std::shared_ptr<internal::DeferredCopy> SnapshotBuffers::copy(std::vector<CheckpointPart>& parts,
                                                              int threads) {
  const at::NoGradGuard no_grad;
  std::map<std::pair<std::string, std::string>, at::Tensor> used;
  internal::TensorCopies now;
  std::shared_ptr<internal::DeferredCopy> later;
  for (CheckpointPart& part : parts) {
    for (auto& [name, tensor] : part.state.tensors) {
      at::Tensor& buffer = used[{part.name, name}];
      if (const auto old = buffers_.find({part.name, name}); old != buffers_.end()) {
        buffer = std::move(old->second);
      }
      if (!buffer.defined() || buffer.sizes() != tensor.sizes() ||
          buffer.dtype() != tensor.dtype()) {
        // Copies from a device are fastest into page-locked memory.
        buffer = internal::fresh_tensor(
            tensor.sizes(),
            at::TensorOptions(tensor.dtype()).pinned_memory(tensor.device().is_cuda()));
      }
      const at::Tensor from = std::exchange(tensor, buffer);
      if (!internal::TensorCopies::can_copy(from)) {
        buffer.copy_(from);
      } else if (!part.is_optimizer || !internal::DeferredCopy::can_watch(from)) {
        now.add(buffer, from);
      } else {
        if (later == nullptr) later = std::make_shared<internal::DeferredCopy>(threads);
        later->add(absl::StrCat(part.name, ": ", name), buffer, from);
      }
    }
  }
  now.run(threads);
  buffers_ = std::move(used);
  return later;
}

CheckpointReader::CheckpointReader(FileSystem& files, std::string folder, Manifest manifest)
    : files_(files), folder_(std::move(folder)), manifest_(std::move(manifest)) {
  const Runtime* const runtime = Runtime::find_current();
  TORCH_CHECK_VALUE(
      manifest_.numerics != kShapesNumerics || (runtime != nullptr && has_shapes_alone(*runtime)),
      folder_, " holds no results of training: a simulation that computed shapes ",
      "without values wrote it (\"numerics\": \"shapes\" in its ", kManifestName,
      "), so only such a simulation can load it");
}

std::optional<std::string> CheckpointReader::find(const std::string& name) const {
  for (const char* extension : {kTensors, kJson}) {
    if (manifest_.files.contains(name + extension)) return join_path(folder_, name + extension);
  }
  return std::nullopt;
}

StateDict CheckpointReader::read(const std::string& name, c10::Device device) const {
  const std::optional<std::string> path = find(name);
  if (!path) {
    throw CheckpointError(absl::StrCat("the checkpoint ", folder_, " has no ", name, kTensors,
                                       " and no ", name, kJson));
  }
  StateDict state;
  if (path->ends_with(kTensors)) {
    const ManifestFile& entry = manifest_.files.at(name + kTensors);
    if (!entry.header) throw CheckpointError(absl::StrCat(*path, " was not written as tensors"));
    const SafetensorsFile file = internal::value_or_throw(
        SafetensorsFile::open(files_, *path, SafetensorsChecksums{*entry.header, entry.tensors}));
    state.tensors = internal::value_or_throw(file.read_all(device));
    if (auto values = internal::state_values(file, *path)) state.values = *std::move(values);
    return state;
  }
  state.values = internal::parse_state_values(read_text(name + kJson), *path);
  return state;
}

std::string CheckpointReader::read_text(const std::string& name) const {
  const ManifestFile& entry = manifest_.files.at(name);
  const std::string path = join_path(folder_, name);
  std::string text;
  uint32_t crc = ~entry.crc32c;
  // The damage may have happened only in transit.
  for (int attempt = 0; attempt < 2 && crc != entry.crc32c; ++attempt) {
    text = internal::value_or_throw(read_file(files_, path));
    crc = internal::crc32c(text);
  }
  if (crc != entry.crc32c) {
    throw CheckpointError(absl::StrCat(path, " is damaged: its checksum is ", checksum_text(crc),
                                       " instead of ", checksum_text(entry.crc32c)));
  }
  return text;
}

StoredTensors CheckpointReader::open(const std::string& name) const {
  const auto entry = manifest_.files.find(name + kTensors);
  if (entry == manifest_.files.end()) {
    throw CheckpointError(absl::StrCat("the checkpoint ", folder_, " has no ", name, kTensors));
  }
  const std::string path = join_path(folder_, entry->first);
  if (!entry->second.header) {
    throw CheckpointError(absl::StrCat(path, " was not written as tensors"));
  }
  return StoredTensors(
      files_, {.path = path,
               .checksums = SafetensorsChecksums{*entry->second.header, entry->second.tensors},
               .crc32c = entry->second.tensors.empty() ? std::optional(entry->second.crc32c)
                                                       : std::nullopt});
}

bool CheckpointReader::is_divided(const std::string& name) const {
  return manifest_.files.contains(internal::in_folder(name, kShardedMetadataFile));
}

StoredTensors CheckpointReader::open_divided(const std::string& name) const {
  const std::string text = read_text(internal::in_folder(name, kShardedMetadataFile));
  ShardedMetadata metadata = internal::value_or_throw(
      in_file(join_path(folder_, internal::in_folder(name, kShardedMetadataFile)),
              parse_sharded_metadata(text)));
  const auto find = [this, name](const std::string& file) -> StoredFile {
    const std::string path = join_path(folder_, internal::in_folder(name, file));
    const auto entry = manifest_.files.find(internal::in_folder(name, file));
    if (entry == manifest_.files.end()) {
      throw CheckpointError(
          absl::StrCat(path,
                       " is needed here, and was written to the disk of another node: load "
                       "it with the ranks on the nodes on which they saved, or copy the "
                       "files of all nodes into one folder"));
    }
    StoredFile stored{.path = path, .crc32c = entry->second.crc32c};
    if (entry->second.header) {
      stored.checksums = SafetensorsChecksums{*entry->second.header, entry->second.tensors};
    }
    return stored;
  };
  return StoredTensors(files_, std::move(metadata), find);
}

}  // namespace accelerate
