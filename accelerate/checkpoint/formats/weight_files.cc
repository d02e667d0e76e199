#include "accelerate/checkpoint/formats/weight_files.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/checkpoint/formats/shard_index.h"
#include "accelerate/checkpoint/formats/shard_plan.h"

namespace accelerate {
namespace {

constexpr char kPickled[] = "pytorch_model.bin";
constexpr char kIndexExtension[] = ".index.json";
constexpr char kSafeIndexExtension[] = ".safetensors.index.json";

absl::StatusOr<WeightFiles> files_of_index(FileSystem& files, const std::string& path) {
  const absl::StatusOr<ShardIndex> index = read_shard_index(files, path);
  if (!index.ok()) return index.status();
  std::map<std::string, std::vector<std::string>> tensors_by_file;
  for (const auto& [tensor, file] : index->weight_map) tensors_by_file[file].push_back(tensor);
  WeightFiles result{.has_index = true, .index_path = path};
  for (auto& [file, tensors] : tensors_by_file) {
    std::string shard = join_path(parent_path(path), file);
    absl::StatusOr<bool> there = exists(files, shard);
    if (there.ok() && !*there && !name_of_aside(file).empty()) {
      // A save was interrupted when it had been committed; this shard has its last name already.
      shard = join_path(parent_path(path), name_of_aside(file));
      there = exists(files, shard);
    }
    if (!there.ok()) return there.status();
    if (!*there) {
      return absl::DataLossError(absl::StrCat(path, " names ", file, ", which does not exist"));
    }
    result.files.push_back({.path = std::move(shard), .tensors = std::move(tensors)});
  }
  return result;
}

absl::StatusOr<WeightFiles> files_of_folder(FileSystem& files, const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = files.list(folder);
  if (!names.ok()) return names.status();
  std::vector<std::string> safe;
  std::vector<std::string> pickled;
  for (const std::string& name : *names) {
    if (absl::EndsWith(name, kSafeIndexExtension)) {
      safe.push_back(name);
    } else if (absl::EndsWith(name, kIndexExtension)) {
      pickled.push_back(name);
    }
  }
  const auto single = [&](const std::string& name) -> std::string {
    return std::binary_search(names->begin(), names->end(), name) ? name : "";
  };
  struct Kind {
    std::string file;
    const std::vector<std::string>& indices;
  };
  for (const Kind& kind :
       {Kind{single(single_file_name("model")), safe}, Kind{single(kPickled), pickled}}) {
    if (!kind.file.empty()) return WeightFiles{.files = {{.path = join_path(folder, kind.file)}}};
    if (kind.indices.size() == 1) return files_of_index(files, join_path(folder, kind.indices[0]));
    if (kind.indices.size() > 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          folder,
          " has several indices, name the one to load: ", absl::StrJoin(kind.indices, ", ")));
    }
  }
  return absl::NotFoundError(absl::StrCat(folder, " has nothing to load: no ",
                                          single_file_name("model"), ", no ", kPickled,
                                          " and no index (*", kIndexExtension, ")"));
}

}  // namespace

absl::StatusOr<WeightFiles> find_weight_files(FileSystem& files, const std::string& checkpoint) {
  const absl::StatusOr<FileInfo> info = files.info(checkpoint);
  if (absl::IsNotFound(info.status())) {
    return absl::NotFoundError(absl::StrCat(checkpoint, " does not exist"));
  }
  if (!info.ok()) return info.status();
  if (info->is_directory) return files_of_folder(files, checkpoint);
  if (absl::EndsWith(checkpoint, kIndexExtension)) return files_of_index(files, checkpoint);
  return WeightFiles{.files = {{.path = checkpoint}}};
}

absl::Status check_weight_file(const WeightFile& file, const std::vector<std::string>& in_file) {
  std::set<std::string> missing(file.tensors.begin(), file.tensors.end());
  for (const std::string& name : in_file) {
    if (missing.erase(name) == 0) {
      return absl::DataLossError(
          absl::StrCat(file.path, " holds \"", name, "\", which its index does not place there"));
    }
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      file.path, " does not hold what its index places there: ", absl::StrJoin(missing, ", ")));
}

}  // namespace accelerate
