/// Checkpoints as folders: creating them, finding the complete ones, removing old ones.
///
/// A checkpoint is written into NAME.tmp and gets its name when everything in it is durable, with
/// its manifest written last. A folder without a manifest, or with files that differ from it, is
/// not a checkpoint. No matter what crashes or when, the checkpoint before still exists, because it
/// is removed only after the new one is complete.
///
/// Errors:  absl::Status naming the path.
/// Threads: any; two saves must not use one folder at the same time. Needs no LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "accelerate/files/formats/manifest.h"
#include "accelerate/platform/file_system.h"

namespace accelerate {

/// Where a checkpoint is written before it gets its name.
std::string staging_path(const std::string& checkpoint);

/// The first number in a folder's own name; absent if there is none or it is too large.
std::optional<int64_t> checkpoint_number(const std::string& name);

/// Makes an empty staging folder for `checkpoint`, marked as `writer`'s, and removes what a crashed
/// save left there.
/// Errors: FailedPrecondition if something that is not a checkpoint has the staging folder's name.
absl::Status begin_checkpoint(FileSystem& files, const std::string& checkpoint,
                              const std::string& writer = "");

/// Checks that the staging folder is still `writer`'s. Errors: FailedPrecondition if another writer
/// has taken it.
absl::Status check_writer(FileSystem& files, const std::string& checkpoint,
                          const std::string& writer);

/// Adds the manifest and gives the staged checkpoint its name. `manifest` lists the files that
/// ranks wrote; other files in the staging folder are added to it. A checkpoint or folder of that
/// name is replaced, atomically where the disk can exchange names; tidy_checkpoint() removes it.
/// Errors: FailedPrecondition naming a file of the manifest that is not visible on this node. The
///         staged files are removed then, and the checkpoint before keeps the name.
absl::Status publish_checkpoint(FileSystem& files, const std::string& checkpoint,
                                Manifest manifest);

/// After a checkpoint replaced another: removes the older one, wherever the save left it, but keeps
/// the user's files in it. Otherwise does nothing.
absl::Status tidy_checkpoint(FileSystem& files, const std::string& checkpoint);

/// If a save crashed between two renames, on a disk that cannot exchange names: gives the
/// checkpoint that was to be replaced its name back.
absl::Status recover_checkpoint(FileSystem& files, const std::string& checkpoint);

/// The complete older checkpoint beside the one at `checkpoint` that replaced it: left when a save
/// on several nodes' own disks crashed before all nodes had replaced theirs. Absent if there is
/// none, as when tidy_checkpoint() has begun to remove it. \pre recover_checkpoint() was called.
absl::StatusOr<std::optional<Manifest>> replaced_checkpoint(FileSystem& files,
                                                            const std::string& checkpoint);

/// Puts the older checkpoint back in place of the newer, with the user's files from the newer one;
/// tidy_checkpoint() removes the newer. If this crashes, one of the two has the name, or
/// recover_checkpoint() gives it to the older one, and this can be called again.
/// Errors: NotFound if there is no older checkpoint.
absl::Status restore_replaced(FileSystem& files, const std::string& checkpoint);

/// Removes the staging folder.
absl::Status abandon_checkpoint(FileSystem& files, const std::string& checkpoint);

/// The manifest of a complete checkpoint: all its files exist, with the right sizes. Their contents
/// are verified by CheckpointReader, or by verify_checkpoint.
/// Errors: NotFound, or DataLoss naming what is missing or wrong; of a missing file of shards also
///         how many ranks saved them, how these were arranged, and a tensor of which it had a part.
absl::StatusOr<Manifest> check_checkpoint(FileSystem& files, const std::string& checkpoint);

/// The same, with every file's checksum. Reads everything.
absl::StatusOr<Manifest> verify_checkpoint(FileSystem& files, const std::string& checkpoint);

/// Verifies the files that CheckpointReader does not read: those that the library did not write.
absl::Status verify_other_files(FileSystem& files, const std::string& checkpoint,
                                const Manifest& manifest);

struct FoundCheckpoint {
  std::string path;
  int64_t number = 0;
  Manifest manifest;
};
/// A folder that has a checkpoint's name but is not complete, or could not be read.
struct SkippedCheckpoint {
  std::string path;
  int64_t number = 0;
  absl::Status why;
};
struct FoundCheckpoints {
  /// Complete checkpoints, by number.
  std::vector<FoundCheckpoint> complete;
  std::vector<SkippedCheckpoint> skipped;
};

/// Finds the checkpoints in `folder`: folders that have a number in their names. A missing folder
/// has none.
absl::StatusOr<FoundCheckpoints> find_checkpoints(FileSystem& files, const std::string& folder);

/// The complete checkpoint with the highest number, if any. `skipped` gets the newer ones that are
/// not complete.
absl::StatusOr<std::optional<FoundCheckpoint>> latest_complete(
    FileSystem& files, const std::string& folder,
    std::vector<SkippedCheckpoint>* skipped = nullptr);

/// Those that have a metric, from the worst to the best. Among equal ones the older is the better.
std::vector<FoundCheckpoint> from_worst_to_best(const std::vector<FoundCheckpoint>& found);

/// Removes the oldest complete checkpoints in `folder` until `limit` are left. `newest`, the one
/// with the best metric and the last durable checkpoint always stay, so a limit of 0 keeps one.
/// Incomplete checkpoints stay and do not count. `damaged` holds the paths of checkpoints that look
/// complete but that a load rejected; they are removed first, and none of them is the best or the
/// last durable one.
absl::Status rotate_checkpoints(FileSystem& files, const std::string& folder, int64_t limit,
                                const std::string& newest,
                                const std::set<std::string>& damaged = {});

}  // namespace accelerate
