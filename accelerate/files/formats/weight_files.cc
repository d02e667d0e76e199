#include "accelerate/files/formats/weight_files.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "accelerate/base/constants.h"
#include "accelerate/base/document.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/number_text.h"
#include "accelerate/base/status.h"

namespace accelerate {
namespace {

using nlohmann::json;

constexpr char kExtension[] = ".safetensors";
constexpr char kAsideExtension[] = ".new.safetensors";
constexpr char kIndexExtension[] = ".index.json";
constexpr char kSafeIndexExtension[] = ".safetensors.index.json";

// One past the largest int64_t.
constexpr double kTooMany = 9223372036854775808.0;

// The units of huggingface_hub, which are not those of `convert_file_size_to_int`: TB is one, KiB
// is not, and a small b is a byte.
absl::StatusOr<int64_t> unit_bytes(absl::string_view size, const std::string& unit) {
  if (unit == "TB") return 1'000'000'000'000;
  if (unit == "GB") return 1'000'000'000;
  if (unit == "MB") return 1'000'000;
  if (unit == "KB") return 1'000;
  return invalid("Unit '", unit, "' not supported. Supported units are TB, GB, MB, KB. Got '", size,
                 "'.");
}

bool takes_digits(absl::string_view& text, size_t count) {
  if (text.size() < count) return false;
  if (!std::all_of(text.begin(), text.begin() + count, absl::ascii_isdigit)) return false;
  text.remove_prefix(count);
  return true;
}

absl::StatusOr<WeightFiles> files_of_index(FileSystem& files, const std::string& path) {
  ACCELERATE_ASSIGN_OR_RETURN(const ShardIndex index, read_shard_index(files, path));
  std::map<std::string, std::vector<std::string>> tensors_by_file;
  for (const auto& [tensor, file] : index.weight_map) tensors_by_file[file].push_back(tensor);
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
  ACCELERATE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(folder));
  std::vector<std::string> safe;
  std::vector<std::string> pickled;
  for (const std::string& name : names) {
    if (absl::EndsWith(name, kSafeIndexExtension)) {
      safe.push_back(name);
    } else if (absl::EndsWith(name, kIndexExtension)) {
      pickled.push_back(name);
    }
  }
  for (const auto& [single, indices] :
       {std::pair(kSafeWeightsName, &safe), std::pair(kWeightsName, &pickled)}) {
    if (std::ranges::binary_search(names, single)) {
      return WeightFiles{.files = {{.path = join_path(folder, single)}}};
    }
    if (indices->size() == 1) return files_of_index(files, join_path(folder, indices->front()));
    if (indices->size() > 1) {
      return invalid(folder,
                     " has several indices, name the one to load: ", absl::StrJoin(*indices, ", "));
    }
  }
  return absl::NotFoundError(absl::StrCat(folder, " has nothing to load: no ", kSafeWeightsName,
                                          ", no ", kWeightsName, " and no index (*",
                                          kIndexExtension, ")"));
}

}  // namespace

absl::StatusOr<int64_t> parse_shard_size(absl::string_view text) {
  const absl::string_view size = absl::StripAsciiWhitespace(text);
  const size_t unit_at = size.size() < 2 ? 0 : size.size() - 2;
  const std::string unit = absl::AsciiStrToUpper(size.substr(unit_at));
  ACCELERATE_ASSIGN_OR_RETURN(const int64_t multiplier, unit_bytes(size, unit));
  const absl::string_view number = absl::StripAsciiWhitespace(size.substr(0, unit_at));
  const std::optional<double> parsed = parse_float(std::string(number));
  if (!parsed) {
    return invalid("Could not parse the size value from '", size,
                   "': could not convert string to float: '", number, "'");
  }
  const double value = *parsed * static_cast<double>(multiplier);
  if (std::isnan(value)) return absl::InvalidArgumentError("cannot convert float NaN to integer");
  if (std::isinf(value)) {
    return absl::InvalidArgumentError("cannot convert float infinity to integer");
  }
  if (std::abs(value) >= kTooMany) {
    return invalid("The size '", size, "' is not a number of bytes below 2^63.");
  }
  return static_cast<int64_t>(value);
}

ShardPlan plan_shards(const std::vector<int64_t>& tensor_bytes, int64_t max_shard_bytes) {
  ShardPlan plan;
  ShardPlan::Shard open;
  int64_t open_bytes = 0;
  for (size_t i = 0; i < tensor_bytes.size(); ++i) {
    const int64_t bytes = tensor_bytes[i];
    plan.total_bytes += bytes;
    if (bytes > max_shard_bytes) {
      plan.shards.push_back({.tensors = {i}});
      continue;
    }
    if (open_bytes > max_shard_bytes - bytes) {
      plan.shards.push_back(std::exchange(open, {}));
      open_bytes = 0;
    }
    open.tensors.push_back(i);
    open_bytes += bytes;
  }
  if (!open.tensors.empty() || plan.shards.empty()) plan.shards.push_back(std::move(open));
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    const std::string suffix =
        plan.is_sharded() ? absl::StrFormat("-%05d-of-%05d", i + 1, plan.shards.size()) : "";
    plan.shards[i].file = with_suffix(kSafeWeightsPatternName, suffix);
  }
  return plan;
}

std::vector<std::string> ShardPlan::files() const {
  size_t count = 0;
  for (const Shard& shard : shards) count += shard.tensors.size();
  std::vector<std::string> files(count);
  for (const Shard& shard : shards) {
    for (size_t tensor : shard.tensors) files[tensor] = shard.file;
  }
  return files;
}

bool is_shard_file_name(absl::string_view file) {
  return absl::ConsumePrefix(&file, "model-") && takes_digits(file, 5) &&
         absl::ConsumePrefix(&file, "-of-") && takes_digits(file, 5) && file == kExtension;
}

std::string shard_index_text(const ShardIndex& index) {
  const json value = {{"metadata", {{"total_size", index.total_size}}},
                      {"weight_map", index.weight_map}};
  return internal::exact_json_text(value, 2, /*ascii_only=*/true) + "\n";
}

absl::StatusOr<ShardIndex> parse_shard_index(absl::string_view text) {
  ACCELERATE_ASSIGN_OR_RETURN(const nlohmann::ordered_json value, json_value(text));
  // Without a weight_map the object is the map itself.
  const nlohmann::ordered_json& map =
      value.is_object() && value.contains("weight_map") ? value["weight_map"] : value;
  if (!map.is_object() || (map.empty() && &map == &value)) {
    return absl::DataLossError("the index has no weight_map");
  }
  ShardIndex index;
  for (const auto& [name, file] : map.items()) {
    if (!file.is_string()) {
      return absl::DataLossError(absl::StrCat("the index names no file for \"", name, "\""));
    }
    const auto& in_index = index.weight_map[name] = file.get<std::string>();
    if (!internal::is_plain_file_name(in_index)) {
      return absl::DataLossError(absl::StrCat("the index has \"", name, "\" in \"", in_index,
                                              "\", which is not the name of a file beside it"));
    }
  }
  const auto metadata = value.find("metadata");
  if (metadata != value.end() && metadata->is_object()) {
    const auto size = metadata->find("total_size");
    if (size != metadata->end() && size->is_number_integer())
      index.total_size = size->get<int64_t>();
  }
  return index;
}

absl::StatusOr<ShardIndex> read_shard_index(FileSystem& files, const std::string& path) {
  return read_file_as(files, path, parse_shard_index);
}

std::string aside_name(const std::string& file) {
  return file.substr(0, file.size() - (sizeof(kExtension) - 1)) + kAsideExtension;
}

std::string name_of_aside(const std::string& file) {
  if (!absl::EndsWith(file, kAsideExtension)) return "";
  return file.substr(0, file.size() - (sizeof(kAsideExtension) - 1)) + kExtension;
}

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

namespace internal {
namespace {

ShardIndex index_of(const ShardPlan& plan, const std::vector<std::string>& names) {
  ShardIndex index{.total_size = plan.total_bytes};
  const std::vector<std::string> files = plan.files();
  for (size_t i = 0; i < names.size(); ++i) index.weight_map[names[i]] = files[i];
  return index;
}

// The folder in the middle of a save.
class ModelFolder {
 public:
  ModelFolder(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {}

  // An interrupted save has left the index that names files aside.
  absl::Status finish_interrupted_save() {
    const absl::StatusOr<std::string> text = read_file(files_, path_of(kSafeWeightsIndexName));
    if (absl::IsNotFound(text.status())) return absl::OkStatus();
    if (!text.ok()) return text.status();
    const absl::StatusOr<ShardIndex> index = parse_shard_index(*text);
    if (!index.ok()) return absl::OkStatus();
    ShardIndex last = *index;
    bool is_interrupted = false;
    for (auto& [tensor, file] : last.weight_map) {
      if (name_of_aside(file).empty()) continue;
      file = name_of_aside(file);
      is_interrupted = true;
    }
    if (!is_interrupted) return absl::OkStatus();
    return take_names(last);
  }

  absl::Status write_aside(const ShardPlan& plan, const WriteShard& write) {
    for (const ShardPlan::Shard& shard : plan.shards) {
      ACCELERATE_RETURN_IF_ERROR(write(path_of(aside_name(shard.file)), shard.tensors));
    }
    return files_.sync_directory(path_);
  }

  void remove_aside(const ShardPlan& plan) {
    for (const ShardPlan::Shard& shard : plan.shards) {
      files_.remove(path_of(aside_name(shard.file))).IgnoreError();
    }
  }

  absl::Status commit_single(const ShardPlan& plan) {
    const std::string& file = plan.shards[0].file;
    const absl::Status renamed = files_.rename(path_of(aside_name(file)), path_of(file));
    return renamed.ok() ? files_.sync_directory(path_) : renamed;
  }

  absl::Status commit_shards(const ShardIndex& index) {
    ACCELERATE_ASSIGN_OR_RETURN(bool replaces, replaces_shards(index));
    if (replaces) {
      ShardIndex aside = index;
      for (auto& [tensor, file] : aside.weight_map) file = aside_name(file);
      ACCELERATE_RETURN_IF_ERROR(write_index(aside));
    }
    const absl::Status named = take_names(index);
    return named.ok() ? remove_names({kSafeWeightsName}) : named;
  }

  // All that a save may have left and `plan` does not have.
  absl::Status remove_stale(const ShardPlan& plan) {
    if (!plan.is_sharded()) {
      // First, for it may name some of the others.
      ACCELERATE_RETURN_IF_ERROR(remove_names({kSafeWeightsIndexName}));
    }
    ACCELERATE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.list(path_));
    std::vector<std::string> stale;
    for (const std::string& name : names) {
      const std::string file = name_of_aside(name).empty() ? name : name_of_aside(name);
      const bool is_aside = file != name;
      const bool is_ours = is_shard_file_name(file) || (is_aside && file == kSafeWeightsName);
      const bool is_new = std::ranges::count(plan.shards, name, &ShardPlan::Shard::file) > 0;
      if (is_ours && !is_new) stale.push_back(name);
    }
    return remove_names(stale);
  }

 private:
  std::string path_of(const std::string& name) const { return join_path(path_, name); }

  absl::Status write_index(const ShardIndex& index) {
    return write_file(files_, path_of(kSafeWeightsIndexName), shard_index_text(index));
  }

  // Whether the present index names files that will be replaced.
  absl::StatusOr<bool> replaces_shards(const ShardIndex& index) {
    const absl::StatusOr<bool> has_index = exists(files_, path_of(kSafeWeightsIndexName));
    if (!has_index.ok() || !*has_index) return has_index;
    for (const auto& [tensor, file] : index.weight_map) {
      const absl::StatusOr<bool> there = exists(files_, path_of(file));
      if (!there.ok() || *there) return there;
    }
    return false;
  }

  // Files aside of this index get their names, if they have not, then the index its own.
  absl::Status take_names(const ShardIndex& index) {
    std::set<std::string> names;
    for (const auto& [tensor, file] : index.weight_map) names.insert(file);
    for (const std::string& name : names) {
      ACCELERATE_ASSIGN_OR_RETURN(const bool is_aside, exists(files_, path_of(aside_name(name))));
      if (!is_aside) continue;
      ACCELERATE_RETURN_IF_ERROR(files_.rename(path_of(aside_name(name)), path_of(name)));
    }
    const absl::Status synced = files_.sync_directory(path_);
    return synced.ok() ? write_index(index) : synced;
  }

  // Removes those of the files that exist.
  absl::Status remove_names(const std::vector<std::string>& names) {
    bool has_removed = false;
    for (const std::string& name : names) {
      const absl::Status removed = files_.remove(path_of(name));
      if (absl::IsNotFound(removed)) continue;
      if (!removed.ok()) return removed;
      has_removed = true;
    }
    return has_removed ? files_.sync_directory(path_) : absl::OkStatus();
  }

  FileSystem& files_;
  const std::string path_;
};

}  // namespace

absl::Status replace_weights(FileSystem& files, const std::string& directory, const ShardPlan& plan,
                             const std::vector<std::string>& names, const WriteShard& write) {
  ACCELERATE_RETURN_IF_ERROR(make_directories_durably(files, directory));
  ModelFolder folder(files, directory);
  ACCELERATE_RETURN_IF_ERROR(folder.finish_interrupted_save());
  const absl::Status written = folder.write_aside(plan, write);
  if (!written.ok()) {
    folder.remove_aside(plan);
    return written;
  }
  const absl::Status committed =
      plan.is_sharded() ? folder.commit_shards(index_of(plan, names)) : folder.commit_single(plan);
  return committed.ok() ? folder.remove_stale(plan) : committed;
}

}  // namespace internal
}  // namespace accelerate
