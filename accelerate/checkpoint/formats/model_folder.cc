#include "accelerate/checkpoint/formats/model_folder.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "accelerate/checkpoint/formats/shard_index.h"

namespace accelerate::internal {
namespace {

constexpr char kPrefix[] = "model";

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
    const absl::StatusOr<std::string> text = read_file(files_, path_of(index_name()));
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
      const absl::Status written = write(path_of(aside_name(shard.file)), shard.tensors);
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

}  // namespace

absl::Status replace_weights(FileSystem& files, const std::string& directory, const ShardPlan& plan,
                             const std::vector<std::string>& names, const WriteShard& write) {
  const absl::Status made = make_directories_durably(files, directory);
  if (!made.ok()) return made;
  ModelFolder folder(files, directory);
  const absl::Status finished = folder.finish_interrupted_save();
  if (!finished.ok()) return finished;
  const absl::Status written = folder.write_aside(plan, write);
  if (!written.ok()) {
    folder.remove_aside(plan);
    return written;
  }
  const absl::Status committed =
      plan.is_sharded() ? folder.commit_shards(index_of(plan, names)) : folder.commit_single(plan);
  return committed.ok() ? folder.remove_stale(plan) : committed;
}

}  // namespace accelerate::internal
