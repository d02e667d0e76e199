#include "accelerate/checkpoint/folder/checkpoint_folder.h"

#include <algorithm>
#include <cctype>
#include <exception>
#include <iterator>
#include <map>
#include <memory>
#include <ranges>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "accelerate/base/checksum.h"
#include "accelerate/base/status.h"
#include "accelerate/files/formats/boxes.h"
#include "accelerate/files/formats/sharded_metadata.h"

namespace accelerate {
namespace {

constexpr char kStaging[] = ".tmp";
// A checkpoint that is being removed.
constexpr char kRemoved[] = ".removed";
// A checkpoint that is being replaced, where a disk cannot exchange names.
constexpr char kReplaced[] = ".replaced";
// Marks a staging folder as ours until it is a checkpoint and has its name.
constexpr char kUnfinished[] = ".unfinished";
// Marks a folder that a checkpoint is about to replace.
constexpr char kOutdated[] = ".outdated";
constexpr int64_t kChunk = int64_t{1} << 20;

// Hands the bytes of a file to `use`, in order, and returns their checksum.
absl::StatusOr<uint32_t> read_through(
    FileSystem& files, const std::string& path,
    absl::FunctionRef<absl::Status(int64_t offset, absl::Span<const std::byte>)> use) {
  ACCELERATE_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, files.open(path));
  std::vector<std::byte> buffer(kChunk);
  uint32_t crc = 0;
  for (int64_t at = 0; at < file->size(); at += kChunk) {
    const auto chunk = absl::MakeSpan(buffer).first(std::min<int64_t>(kChunk, file->size() - at));
    ACCELERATE_RETURN_IF_ERROR(file->read_at(at, chunk));
    ACCELERATE_RETURN_IF_ERROR(use(at, chunk));
    const uint32_t of_chunk = internal::crc32c(chunk);
    crc = at == 0 ? of_chunk : internal::concat_crc32c(crc, of_chunk, chunk.size());
  }
  return crc;
}

// What is lost with a file of a folder of shards: how many ranks wrote the folder, how these were
// arranged, and the first of the tensors of which the file had a part. Empty where no metadata
// beside it says so.
std::string lost_with(FileSystem& files, const std::string& path, const std::string& mesh) {
  const std::string folder = parent_path(path);
  const absl::StatusOr<ShardedMetadata> metadata =
      read_file_as(files, join_path(folder, kShardedMetadataFile), parse_sharded_metadata);
  if (!metadata.ok()) return "";
  const std::string file = path.substr(folder.size() + 1);
  int64_t others = -1;
  std::string first;
  for (const auto& [name, unused] : metadata->tensors) {
    const std::vector<TensorShard> shards = shards_of(*metadata, name);
    const auto shard = std::ranges::find(shards, file, &TensorShard::file);
    if (shard == shards.end()) continue;
    if (++others == 0) first = absl::StrCat("\"", name, "\" ", box_text(shard->box));
  }
  if (others < 0) return "";
  return absl::StrCat("; with it, of what ", metadata->world_size, " ranks saved",
                      mesh.empty() ? "" : absl::StrCat(" (", mesh, ")"), ", ", first,
                      others > 0 ? absl::StrCat(" and parts of ", others, " other tensors") : "");
}

absl::StatusOr<uint32_t> checksum_of_file(FileSystem& files, const std::string& path) {
  return read_through(files, path, [](int64_t, auto) { return absl::OkStatus(); });
}

// Verifies the checksums of a checkpoint's files, or of those alone that are not of tensors.
absl::Status verify_files(FileSystem& files, const std::string& checkpoint,
                          const Manifest& manifest, bool with_tensors) {
  for (const auto& [name, entry] : manifest.files) {
    if (entry.header && !with_tensors) continue;
    const std::string path = join_path(checkpoint, name);
    absl::StatusOr<uint32_t> crc = checksum_of_file(files, path);
    // The damage may have happened only in transit.
    if (crc.ok() && *crc != entry.crc32c) crc = checksum_of_file(files, path);
    if (!crc.ok()) return crc.status();
    if (*crc == entry.crc32c) continue;
    return absl::DataLossError(absl::StrCat(path, " is damaged: its checksum is ",
                                            checksum_text(*crc), " instead of ",
                                            checksum_text(entry.crc32c)));
  }
  return absl::OkStatus();
}

// Replaces a file that the user wrote by a durable copy. Returns its checksum.
absl::StatusOr<uint32_t> make_durable(FileSystem& files, const std::string& path) {
  const std::string partial = files.temporary_name(path);
  ACCELERATE_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> copy, files.create(partial));
  absl::StatusOr<uint32_t> crc =
      read_through(files, path, [&](int64_t offset, absl::Span<const std::byte> bytes) {
        return copy->write_at(offset, bytes);
      });
  absl::Status status = crc.status();
  if (status.ok()) status = copy->sync();
  status.Update(copy->close());
  if (status.ok()) status = files.rename(partial, path);
  if (!status.ok()) return status;
  return crc;
}

// The size of every file below `folder`, by its path from there.
absl::Status list_files(FileSystem& files, const std::string& folder, const std::string& prefix,
                        std::map<std::string, int64_t>& found) {
  ACCELERATE_ASSIGN_OR_RETURN(std::vector<std::string> names, files.list(folder));
  for (const std::string& name : names) {
    const std::string path = join_path(folder, name);
    ACCELERATE_ASSIGN_OR_RETURN(FileInfo info, files.info(path));
    if (!info.is_directory) {
      found.emplace(prefix + name, info.size);
      continue;
    }
    ACCELERATE_RETURN_IF_ERROR(list_files(files, path, absl::StrCat(prefix, name, "/"), found));
  }
  return absl::OkStatus();
}

// Makes the names in a folder, and in those below, durable.
absl::Status sync_tree(FileSystem& files, const std::string& folder) {
  ACCELERATE_ASSIGN_OR_RETURN(std::vector<std::string> names, files.list(folder));
  for (const std::string& name : names) {
    const std::string path = join_path(folder, name);
    const absl::StatusOr<FileInfo> info = files.info(path);
    absl::Status status = info.status();
    if (info.ok() && info->is_directory) status = sync_tree(files, path);
    if (!status.ok()) return status;
  }
  return files.sync_directory(folder);
}

// Adds the files that no rank listed to the manifest.
absl::Status complete_manifest(FileSystem& files, const std::string& staging, Manifest& manifest) {
  std::map<std::string, int64_t> found;
  ACCELERATE_RETURN_IF_ERROR(list_files(files, staging, "", found));
  found.erase(kUnfinished);  // until the manifest is there
  for (const auto& [name, size] : found) {
    const std::string path = join_path(staging, name);
    const auto known = manifest.files.find(name);
    if (known != manifest.files.end() && known->second.size == size) continue;
    if (known != manifest.files.end()) {
      return absl::DataLossError(
          absl::StrCat(path, " has ", size, " bytes, but ", known->second.size, " were written"));
    }
    ACCELERATE_ASSIGN_OR_RETURN(uint32_t crc, make_durable(files, path));
    manifest.files[name] = {.size = size, .crc32c = crc};
  }
  for (const auto& [name, file] : manifest.files) {
    if (found.contains(name)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("a rank wrote ", join_path(staging, name),
                     ", but it cannot be seen from here; if nodes share no disk, set "
                     "ProjectConfiguration::save_on_each_node"));
  }
  return absl::OkStatus();
}

// Reads a folder's manifest; `manifest` gets the errors of its text. Returns the errors of reading.
absl::Status read_manifest(FileSystem& files, const std::string& folder,
                           absl::StatusOr<Manifest>& manifest) {
  // Damage may have happened only in transit.
  for (int attempt = 0; attempt < 2; ++attempt) {
    ACCELERATE_ASSIGN_OR_RETURN(const std::string text,
                                read_file(files, join_path(folder, kManifestName)));
    manifest = parse_manifest(text);
    if (manifest.ok()) break;
  }
  return absl::OkStatus();
}

// Moves the entries of `from` that are not the checkpoint's own to `to`, unless the name is taken,
// and makes that durable.
absl::Status move_foreign_entries(FileSystem& files, const std::string& from,
                                  const std::string& to) {
  absl::StatusOr<Manifest> manifest = Manifest();
  const absl::Status read = read_manifest(files, from, manifest);
  const Manifest own = read.ok() && manifest.ok() ? *std::move(manifest) : Manifest();
  ACCELERATE_ASSIGN_OR_RETURN(std::vector<std::string> names, files.list(from));
  for (const std::string& name : names) {
    // The first file below that name. It need not come next to the name: '.' sorts before '/'.
    const auto below = own.files.lower_bound(name + "/");
    const bool is_own = name == kManifestName || name == kOutdated || name == kUnfinished ||
                        own.files.contains(name) ||
                        (below != own.files.end() && below->first.starts_with(name + "/"));
    if (is_own) continue;
    const std::string target = join_path(to, name);
    ACCELERATE_ASSIGN_OR_RETURN(const bool taken, exists(files, target));
    if (taken) continue;
    ACCELERATE_RETURN_IF_ERROR(files.rename(join_path(from, name), target));
  }
  ACCELERATE_RETURN_IF_ERROR(files.sync_directory(to));
  return files.sync_directory(from);
}

// Writes the mark in place: a folder with half a mark is marked as well.
absl::Status put_mark(FileSystem& files, const std::string& folder, const char* mark,
                      const std::string& text) {
  ACCELERATE_RETURN_IF_ERROR(write_durably(files, join_path(folder, mark), text));
  return files.sync_directory(folder);
}

// Whether a folder may be removed: it was staged by a save, is a checkpoint, or is empty.
absl::StatusOr<bool> is_ours(FileSystem& files, const std::string& folder) {
  for (const char* mark : {kUnfinished, kOutdated}) {
    const absl::StatusOr<bool> is_marked = exists(files, join_path(folder, mark));
    if (!is_marked.ok() || *is_marked) return is_marked;
  }
  absl::StatusOr<Manifest> manifest = Manifest();
  const absl::Status read = read_manifest(files, folder, manifest);
  if (read.ok()) return manifest.ok();
  if (!absl::IsNotFound(read)) return read;
  ACCELERATE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(folder));
  return names.empty();
}

// Removes a folder that is_ours, the marks of that last.
absl::Status remove_ours(FileSystem& files, const std::string& folder) {
  const absl::StatusOr<bool> ours = is_ours(files, folder);
  if (absl::IsNotFound(ours.status())) return absl::OkStatus();
  if (!ours.ok()) return ours.status();
  if (!*ours) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder, " is in the way, and is not what a save left there; move it elsewhere"));
  }
  ACCELERATE_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.list(folder));
  for (const std::string& name : names) {
    if (name == kManifestName || name == kUnfinished || name == kOutdated) continue;
    ACCELERATE_RETURN_IF_ERROR(remove_all(files, join_path(folder, name)));
  }
  // If power fails, the marks must not be gone before the rest.
  ACCELERATE_RETURN_IF_ERROR(files.sync_directory(folder));
  return remove_all(files, folder);
}

// The path of a checkpoint that is being replaced, where a disk cannot exchange names.
std::string replaced_path(const std::string& checkpoint) {
  return std::string(absl::StripSuffix(checkpoint, "/")) + kReplaced;
}

// Whether a checkpoint replaced the folder, or was about to.
absl::StatusOr<bool> is_outdated(FileSystem& files, const std::string& folder) {
  const absl::StatusOr<FileInfo> info = files.info(folder);
  if (absl::IsNotFound(info.status())) return false;
  if (!info.ok()) return info.status();
  if (!info->is_directory) return false;
  return exists(files, join_path(folder, kOutdated));
}

// Removes a folder that is_ours, but moves the user's files of an outdated one to `keeper`.
absl::Status clear_away(FileSystem& files, const std::string& folder, const std::string& keeper) {
  const absl::StatusOr<bool> outdated = is_outdated(files, folder);
  absl::Status status = outdated.status();
  if (status.ok() && *outdated) status = move_foreign_entries(files, folder, keeper);
  return status.ok() ? remove_ours(files, folder) : status;
}

// Gives `staging` the name of the folder at `checkpoint`, which gets the staging one.
absl::Status replace(FileSystem& files, const std::string& staging, const std::string& checkpoint) {
  absl::Status status = files.exchange(staging, checkpoint);
  if (!absl::IsUnimplemented(status)) return status;
  const std::string replaced = replaced_path(checkpoint);
  status = remove_ours(files, replaced);
  if (status.ok()) status = files.rename(checkpoint, replaced);
  if (!status.ok()) return status;
  if (status = files.rename(staging, checkpoint); status.ok()) {
    return files.rename(replaced, staging);
  }
  files.rename(replaced, checkpoint).IgnoreError();
  return status;
}

// The complete checkpoint that another took the place of, while it is there.
absl::StatusOr<std::optional<FoundCheckpoint>> find_replaced(FileSystem& files,
                                                             const std::string& checkpoint) {
  for (const std::string& path : {staging_path(checkpoint), replaced_path(checkpoint)}) {
    ACCELERATE_ASSIGN_OR_RETURN(const bool outdated, is_outdated(files, path));
    if (!outdated) continue;
    absl::StatusOr<Manifest> manifest = check_checkpoint(files, path);
    if (manifest.ok()) return FoundCheckpoint{.path = path, .manifest = *std::move(manifest)};
    if (!absl::IsDataLoss(manifest.status())) return manifest.status();
  }
  return std::nullopt;
}

// Makes the staged files a checkpoint but for its name.
absl::Status finish(FileSystem& files, const std::string& staging, Manifest manifest) {
  ACCELERATE_RETURN_IF_ERROR(complete_manifest(files, staging, manifest));
  std::string text;
  try {
    text = manifest_text(manifest);
  } catch (const std::exception& error) {
    return invalid("cannot list the files of ", staging, ": ", error.what());
  }
  ACCELERATE_RETURN_IF_ERROR(write_file(files, join_path(staging, kManifestName), text));
  return sync_tree(files, staging);
}

}  // namespace

std::string staging_path(const std::string& checkpoint) {
  return std::string(absl::StripSuffix(checkpoint, "/")) + kStaging;
}

std::optional<int64_t> checkpoint_number(const std::string& name) {
  const auto digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  const auto begin = std::find_if(name.begin(), name.end(), digit);
  const auto end = std::find_if_not(begin, name.end(), digit);
  int64_t number = 0;
  if (!absl::SimpleAtoi(std::string(begin, end), &number)) return std::nullopt;
  return number;
}

absl::Status begin_checkpoint(FileSystem& files, const std::string& checkpoint,
                              const std::string& writer) {
  const std::string staging = staging_path(checkpoint);
  const absl::StatusOr<FileInfo> there = files.info(checkpoint);
  if (there.ok() && !there->is_directory) {
    return absl::FailedPreconditionError(absl::StrCat(checkpoint, " is a file"));
  }
  ACCELERATE_RETURN_IF_ERROR(recover_checkpoint(files, checkpoint));
  ACCELERATE_RETURN_IF_ERROR(tidy_checkpoint(files, checkpoint));
  ACCELERATE_RETURN_IF_ERROR(make_directories_durably(files, staging));
  absl::Status status = put_mark(files, staging, kUnfinished, writer);
  if (!status.ok()) remove_ours(files, staging).IgnoreError();
  return status;
}

absl::Status check_writer(FileSystem& files, const std::string& checkpoint,
                          const std::string& writer) {
  const std::string staging = staging_path(checkpoint);
  const absl::StatusOr<std::string> found = read_file(files, join_path(staging, kUnfinished));
  if (found.ok() && *found == writer) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("another rank writes to ", staging,
                                                    " as well; if nodes share this disk, unset "
                                                    "ProjectConfiguration::save_on_each_node"));
}

absl::Status publish_checkpoint(FileSystem& files, const std::string& checkpoint,
                                Manifest manifest) {
  const std::string staging = staging_path(checkpoint);
  absl::Status status = finish(files, staging, std::move(manifest));
  absl::StatusOr<bool> taken = false;
  if (status.ok()) status = (taken = exists(files, checkpoint)).status();
  if (status.ok() && *taken) status = put_mark(files, checkpoint, kOutdated, "");
  if (status.ok()) {
    status = *taken ? replace(files, staging, checkpoint) : files.rename(staging, checkpoint);
  }
  if (!status.ok()) {
    // The staging folder is still the new one.
    remove_ours(files, staging).IgnoreError();
    return status;
  }
  status = files.sync_directory(parent_path(checkpoint));
  // It does no harm if it stays.
  if (status.ok()) files.remove(join_path(checkpoint, kUnfinished)).IgnoreError();
  return status;
}

absl::Status tidy_checkpoint(FileSystem& files, const std::string& checkpoint) {
  const std::string staging = staging_path(checkpoint);
  ACCELERATE_ASSIGN_OR_RETURN(const bool is_published, exists(files, checkpoint));
  if (!is_published) return remove_ours(files, staging);
  // Where a save died before it could give the folder the staging name.
  const std::string replaced = replaced_path(checkpoint);
  const absl::StatusOr<bool> is_replaced = is_outdated(files, replaced);
  absl::Status status = is_replaced.status();
  if (status.ok() && *is_replaced) status = clear_away(files, replaced, checkpoint);
  return status.ok() ? clear_away(files, staging, checkpoint) : status;
}

absl::Status recover_checkpoint(FileSystem& files, const std::string& checkpoint) {
  const std::string replaced = replaced_path(checkpoint);
  const absl::StatusOr<bool> is_there = exists(files, checkpoint);
  if (!is_there.ok() || *is_there) return is_there.status();
  const absl::StatusOr<bool> is_replaced = exists(files, replaced);
  if (!is_replaced.ok() || !*is_replaced) return is_replaced.status();
  const absl::Status renamed = files.rename(replaced, checkpoint);
  return renamed.ok() ? files.sync_directory(parent_path(checkpoint)) : renamed;
}

absl::Status abandon_checkpoint(FileSystem& files, const std::string& checkpoint) {
  return remove_ours(files, staging_path(checkpoint));
}

absl::StatusOr<Manifest> check_checkpoint(FileSystem& files, const std::string& checkpoint) {
  ACCELERATE_RETURN_IF_ERROR(files.info(checkpoint).status());
  absl::StatusOr<Manifest> manifest = Manifest();
  const absl::Status read = read_manifest(files, checkpoint, manifest);
  if (absl::IsNotFound(read)) {
    return absl::DataLossError(
        absl::StrCat(checkpoint, " is not a complete checkpoint: it has no ", kManifestName));
  }
  if (!read.ok()) return read;
  if (!manifest.ok()) {
    return absl::DataLossError(
        absl::StrCat(join_path(checkpoint, kManifestName), ": ", manifest.status().message()));
  }
  for (const auto& [name, file] : manifest->files) {
    const std::string file_path = join_path(checkpoint, name);
    const absl::StatusOr<FileInfo> info = files.info(file_path);
    if (absl::IsNotFound(info.status())) {
      return absl::DataLossError(
          absl::StrCat(file_path, " is missing", lost_with(files, file_path, manifest->mesh)));
    }
    if (!info.ok()) return info.status();
    if (info->size != file.size || info->is_directory) {
      return absl::DataLossError(
          absl::StrCat(file_path, " has ", info->size, " bytes instead of ", file.size));
    }
  }
  return manifest;
}

absl::StatusOr<Manifest> verify_checkpoint(FileSystem& files, const std::string& checkpoint) {
  ACCELERATE_ASSIGN_OR_RETURN(Manifest manifest, check_checkpoint(files, checkpoint));
  ACCELERATE_RETURN_IF_ERROR(verify_files(files, checkpoint, manifest, /*with_tensors=*/true));
  return manifest;
}

absl::Status verify_other_files(FileSystem& files, const std::string& checkpoint,
                                const Manifest& manifest) {
  return verify_files(files, checkpoint, manifest, /*with_tensors=*/false);
}

absl::StatusOr<std::optional<Manifest>> replaced_checkpoint(FileSystem& files,
                                                            const std::string& checkpoint) {
  ACCELERATE_ASSIGN_OR_RETURN(std::optional<FoundCheckpoint> found,
                              find_replaced(files, checkpoint));
  return found ? std::optional(std::move(found)->manifest) : std::nullopt;
}

absl::Status restore_replaced(FileSystem& files, const std::string& checkpoint) {
  ACCELERATE_ASSIGN_OR_RETURN(const std::optional<FoundCheckpoint> found,
                              find_replaced(files, checkpoint));
  if (!found) {
    return absl::NotFoundError(
        absl::StrCat("no older checkpoint lies beside ", checkpoint, " to take its place again"));
  }
  const std::string& older = found->path;
  const std::string staging = staging_path(checkpoint);
  const std::string replaced = replaced_path(checkpoint);
  // The newer checkpoint will be removed like a staging folder, with all that is in it.
  absl::Status status = move_foreign_entries(files, checkpoint, older);
  bool is_exchanged = false;
  if (status.ok() && older == staging) {
    status = files.exchange(staging, checkpoint);
    is_exchanged = status.ok();
    if (absl::IsUnimplemented(status)) {
      status = clear_away(files, replaced, staging);
      if (status.ok()) status = files.rename(staging, replaced);
    }
  }
  // recover_checkpoint() continues from there if this crashes between two renames.
  if (status.ok() && !is_exchanged) {
    status = clear_away(files, staging, replaced);
    if (status.ok()) status = files.rename(checkpoint, staging);
    if (status.ok()) status = files.rename(replaced, checkpoint);
  }
  if (status.ok()) status = files.sync_directory(parent_path(checkpoint));
  // It does no harm if it stays.
  if (status.ok()) files.remove(join_path(checkpoint, kOutdated)).IgnoreError();
  return status;
}

absl::StatusOr<FoundCheckpoints> find_checkpoints(FileSystem& files, const std::string& folder) {
  FoundCheckpoints found;
  const absl::StatusOr<std::vector<std::string>> names = files.list(folder);
  if (absl::IsNotFound(names.status())) return found;
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    const std::optional<int64_t> number = checkpoint_number(name);
    if (!number) continue;
    const std::string path = join_path(folder, name);
    const absl::StatusOr<FileInfo> info = files.info(path);
    if (!info.ok() || !info->is_directory) continue;
    if (name.ends_with(kStaging) || name.ends_with(kRemoved) || name.ends_with(kReplaced)) {
      found.skipped.push_back(
          {path, *number,
           absl::DataLossError(absl::StrCat(path, " was left by a save that crashed"))});
      continue;
    }
    absl::StatusOr<Manifest> manifest = check_checkpoint(files, path);
    if (manifest.ok()) {
      found.complete.push_back({.path = path, .number = *number, .manifest = *std::move(manifest)});
    } else {
      found.skipped.push_back({path, *number, manifest.status()});
    }
  }
  std::ranges::stable_sort(found.complete, {}, &FoundCheckpoint::number);
  return found;
}

absl::StatusOr<std::optional<FoundCheckpoint>> latest_complete(
    FileSystem& files, const std::string& folder, std::vector<SkippedCheckpoint>* skipped) {
  ACCELERATE_ASSIGN_OR_RETURN(FoundCheckpoints found, find_checkpoints(files, folder));
  std::optional<FoundCheckpoint> latest;
  if (!found.complete.empty()) latest = std::move(found.complete.back());
  if (skipped != nullptr) {
    for (SkippedCheckpoint& each : found.skipped) {
      if (!latest || each.number >= latest->number) skipped->push_back(std::move(each));
    }
  }
  return latest;
}

std::vector<FoundCheckpoint> from_worst_to_best(const std::vector<FoundCheckpoint>& found) {
  std::vector<FoundCheckpoint> rated;
  std::ranges::copy_if(
      found | std::views::reverse, std::back_inserter(rated),
      [](const FoundCheckpoint& each) { return each.manifest.metric.has_value(); });
  std::ranges::stable_sort(rated, {},
                           [](const FoundCheckpoint& each) { return *each.manifest.metric; });
  return rated;
}

absl::Status rotate_checkpoints(FileSystem& files, const std::string& folder, int64_t limit,
                                const std::string& newest, const std::set<std::string>& damaged) {
  ACCELERATE_ASSIGN_OR_RETURN(FoundCheckpoints found, find_checkpoints(files, folder));
  // Finishes the removals of a rotation that crashed.
  for (const auto& [path, number, why] : found.skipped) {
    if (!path.ends_with(kRemoved)) continue;
    const absl::StatusOr<bool> ours = is_ours(files, path);
    if (!ours.ok() || !*ours) continue;
    ACCELERATE_RETURN_IF_ERROR(remove_ours(files, path));
  }
  std::vector<FoundCheckpoint>& complete = found.complete;
  // The checkpoint that would be left if power failed now.
  std::string last_durable;
  for (const FoundCheckpoint& each : complete) {
    if (!each.manifest.durable || damaged.contains(each.path)) continue;
    if (last_durable != newest || each.path == newest) last_durable = each.path;
  }
  std::string best;
  for (const FoundCheckpoint& each : from_worst_to_best(complete)) {
    if (!damaged.contains(each.path)) best = each.path;
  }
  std::ranges::stable_partition(
      complete, [&](const FoundCheckpoint& each) { return damaged.contains(each.path); });
  int64_t surplus = static_cast<int64_t>(complete.size()) - std::max<int64_t>(limit, 1);
  for (const FoundCheckpoint& each : complete) {
    if (surplus <= 0) break;
    if (each.path == newest || each.path == best || each.path == last_durable) continue;
    // It loses its name first and then its files, so it is never half a checkpoint.
    const std::string removed = each.path + kRemoved;
    ACCELERATE_RETURN_IF_ERROR(files.rename(each.path, removed));
    ACCELERATE_RETURN_IF_ERROR(remove_ours(files, removed));
    --surplus;
  }
  return files.sync_directory(folder);
}

}  // namespace accelerate
