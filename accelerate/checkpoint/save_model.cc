#include "accelerate/checkpoint/save_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/checkpoint/checkpoint_error.h"
#include "accelerate/checkpoint/module_state_dict.h"
#include "accelerate/checkpoint/safetensors.h"
#include "accelerate/checkpoint/shard_index.h"
#include "accelerate/checkpoint/shard_plan.h"
#include "accelerate/state/partial_state.h"
#include "accelerate/util/logger.h"

namespace accelerate {
namespace {

constexpr char kPrefix[] = "model";
constexpr char kLoggerName[] = "accelerate.checkpoint";

// Nothing without a PartialState, which says who writes.
bool can_log() {
  const Runtime* runtime = Runtime::find_current();
  return runtime != nullptr && PartialState::find(*runtime) != nullptr;
}

int64_t bytes_of(const std::variant<int64_t, std::string>& size) {
  if (const auto* bytes = std::get_if<int64_t>(&size)) return *bytes;
  const absl::StatusOr<int64_t> parsed = parse_shard_size(std::get<std::string>(size));
  TORCH_CHECK_VALUE(parsed.ok(), std::string(parsed.status().message()));
  return *parsed;
}

void check_memory(const NamedTensors& state) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state) {
    TORCH_CHECK_VALUE(tensor.defined(), "cannot save \"", name, "\": it is undefined");
    if (tensor.is_meta()) names.push_back(name);
  }
  TORCH_CHECK_VALUE(names.empty(), "cannot save tensors that are on the meta device: ",
                    absl::StrJoin(names, ", "));
}

ShardPlan plan_of(const NamedTensors& state, int64_t max_shard_bytes) {
  std::vector<int64_t> sizes;
  for (const auto& [name, tensor] : state) sizes.push_back(static_cast<int64_t>(tensor.nbytes()));
  return plan_shards(sizes, max_shard_bytes, kPrefix);
}

ShardIndex index_of(const ShardPlan& plan, const NamedTensors& state) {
  ShardIndex index{.total_size = plan.total_bytes};
  const std::vector<std::string> files = plan.files();
  for (size_t i = 0; i < state.size(); ++i) index.weight_map[state[i].first] = files[i];
  return index;
}

// The folder in the middle of a save.
class ModelFolder {
 public:
  ModelFolder(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {}

  // An interrupted save has left the index that names files aside.
  absl::Status finish_interrupted_save() {
    const absl::StatusOr<ShardIndex> index = read_shard_index(files_, path_of(index_name()));
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

  absl::Status write_aside(const ShardPlan& plan, const NamedTensors& state) {
    for (const ShardPlan::Shard& shard : plan.shards) {
      NamedTensors tensors;
      for (size_t tensor : shard.tensors) tensors.push_back(state[tensor]);
      const absl::Status written =
          write_safetensors(files_, path_of(aside_name(shard.file)), tensors, {{{"format", "pt"}}})
              .status();
      if (!written.ok()) return written;
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
    absl::StatusOr<bool> replaces = replaces_shards(index);
    if (!replaces.ok()) return replaces.status();
    if (*replaces) {
      ShardIndex aside = index;
      for (auto& [tensor, file] : aside.weight_map) file = aside_name(file);
      const absl::Status written = write_index(aside);
      if (!written.ok()) return written;
    }
    const absl::Status named = take_names(index);
    return named.ok() ? remove_names({single_file_name(kPrefix)}) : named;
  }

  // All that a save may have left and `plan` does not have.
  absl::Status remove_stale(const ShardPlan& plan) {
    if (!plan.is_sharded()) {
      // First, for it may name some of the others.
      const absl::Status removed = remove_names({index_name()});
      if (!removed.ok()) return removed;
    }
    const absl::StatusOr<std::vector<std::string>> names = files_.list(path_);
    if (!names.ok()) return names.status();
    std::vector<std::string> stale;
    for (const std::string& name : *names) {
      const std::string file = name_of_aside(name).empty() ? name : name_of_aside(name);
      const bool is_aside = file != name;
      const bool is_ours =
          is_shard_file_name(kPrefix, file) || (is_aside && file == single_file_name(kPrefix));
      const bool is_new = std::any_of(plan.shards.begin(), plan.shards.end(),
                                      [&](const auto& shard) { return shard.file == name; });
      if (is_ours && !is_new) stale.push_back(name);
    }
    return remove_names(stale);
  }

 private:
  static std::string index_name() { return index_file_name(kPrefix); }
  std::string path_of(const std::string& name) const { return join_path(path_, name); }

  absl::Status write_index(const ShardIndex& index) {
    return write_file(files_, path_of(index_name()), shard_index_text(index));
  }

  // Whether the present index names files that will be replaced.
  absl::StatusOr<bool> replaces_shards(const ShardIndex& index) {
    const absl::StatusOr<bool> has_index = exists(files_, path_of(index_name()));
    if (!has_index.ok() || !*has_index) return has_index;
    for (const auto& [tensor, file] : index.weight_map) {
      const absl::StatusOr<bool> there = exists(files_, path_of(file));
      if (!there.ok() || *there) return there;
    }
    return false;
  }

  // Files aside of this index get their names, if they have not, then the index its own.
  absl::Status take_names(const ShardIndex& index) {
    std::vector<std::string> names;
    for (const auto& [tensor, file] : index.weight_map) names.push_back(file);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    for (const std::string& name : names) {
      const absl::StatusOr<bool> is_aside = exists(files_, path_of(aside_name(name)));
      if (!is_aside.ok()) return is_aside.status();
      if (!*is_aside) continue;
      const absl::Status renamed = files_.rename(path_of(aside_name(name)), path_of(name));
      if (!renamed.ok()) return renamed;
    }
    const absl::Status synced = files_.sync_directory(path_);
    return synced.ok() ? write_index(index) : synced;
  }

  // Those that are there.
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

absl::Status save(FileSystem& files, const NamedTensors& state, const std::string& directory,
                  const ShardPlan& plan) {
  const absl::Status made = files.make_directories(directory);
  if (!made.ok()) return made;
  ModelFolder folder(files, directory);
  const absl::Status finished = folder.finish_interrupted_save();
  if (!finished.ok()) return finished;
  const absl::Status written = folder.write_aside(plan, state);
  if (!written.ok()) {
    folder.remove_aside(plan);
    return written;
  }
  const absl::Status committed =
      plan.is_sharded() ? folder.commit_shards(index_of(plan, state)) : folder.commit_single(plan);
  return committed.ok() ? folder.remove_stale(plan) : committed;
}

}  // namespace

void save_model(FileSystem& files, const NamedTensors& state, const std::string& directory,
                const SaveModelOptions& options) {
  const absl::StatusOr<FileInfo> info = files.info(directory);
  TORCH_CHECK_VALUE(!info.ok() || info->is_directory, "cannot save a model in ", directory,
                    ": it is a file, not a folder");
  check_memory(state);
  internal::warn_of_unsafe_serialization(options.safe_serialization);
  const int64_t max_shard_bytes = bytes_of(options.max_shard_size);
  const NamedTensors cleaned = clean_state_dict_for_safetensors(state);
  internal::check_ok(save(files, cleaned, directory, plan_of(cleaned, max_shard_bytes)));
}

NamedTensors clean_state_dict_for_safetensors(const NamedTensors& state) {
  const std::vector<size_t> firsts = internal::first_identical_views(state);
  NamedTensors cleaned;
  std::vector<std::string> removed;
  for (size_t i = 0; i < state.size(); ++i) {
    if (firsts[i] == i) {
      cleaned.push_back(state[i]);
    } else {
      removed.push_back(absl::StrCat(state[i].first, " (as ", state[firsts[i]].first, ")"));
    }
  }
  if (!removed.empty() && can_log()) {
    get_logger(kLoggerName).warning([&] {
      return absl::StrCat("tied tensors are saved once; not under these names: ",
                          absl::StrJoin(removed, ", "));
    });
  }
  return cleaned;
}

namespace internal {

void warn_of_unsafe_serialization(bool safe_serialization) {
  if (safe_serialization || !can_log()) return;
  get_logger(kLoggerName)
      .warning_once(
          "safe_serialization=false has no effect: safetensors are written, never pickle");
}

}  // namespace internal
}  // namespace accelerate
