/// Checkpoints as folders: how they come into being, which of them are complete, which go.
///
/// A checkpoint is written into NAME.tmp and gets its name when everything in it is durable, with
/// its manifest written last. Whatever dies, and whenever: a folder without a manifest, or whose
/// files are not as the manifest says, is not taken for a checkpoint, and the one before is still
/// there, because it goes only after the new one is complete.
///
/// Errors:  absl::Status naming the path.
/// Threads: any; two at once on one folder are two programs' mistake. Knows nothing of LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "accelerate/checkpoint/formats/manifest.h"
#include "accelerate/platform/file_system.h"

namespace accelerate {

/// Where a checkpoint is written before it gets its name.
std::string staging_path(const std::string& checkpoint);

/// The first number in a folder's own name; nothing where there is none, or too large a one.
std::optional<int64_t> checkpoint_number(const std::string& name);

/// An empty staging folder for `checkpoint`, marked as `writer`'s. What another save that died left
/// there is tidied up.
/// Errors: FailedPrecondition where the staging folder's name is taken by what is no checkpoint.
absl::Status begin_checkpoint(FileSystem& files, const std::string& checkpoint,
                              const std::string& writer = "");

/// Whether the staging folder is still `writer`'s, and not that of another which writes to the same
/// place. Errors: FailedPrecondition if not.
absl::Status check_writer(FileSystem& files, const std::string& checkpoint,
                          const std::string& writer);

/// Adds the manifest and gives the staged checkpoint its name. `manifest` lists what ranks wrote;
/// what else lies in the staging folder is added to it. A checkpoint or folder of that name is
/// replaced, at once where the disk can exchange names; tidy_checkpoint() removes it.
/// Errors: FailedPrecondition naming a file of the manifest that cannot be seen from here. What was
///         staged is gone then, and what had the name has it.
absl::Status publish_checkpoint(FileSystem& files, const std::string& checkpoint,
                                Manifest manifest);

/// After a checkpoint took the place of another: removes that one, wherever the save left it, but
/// keeps what was in it besides its own files. Nothing to do otherwise.
absl::Status tidy_checkpoint(FileSystem& files, const std::string& checkpoint);

/// Where a disk cannot exchange names and a save died between two: gives the checkpoint that was to
/// be replaced its name back.
absl::Status recover_checkpoint(FileSystem& files, const std::string& checkpoint);

/// The complete older checkpoint that lies beside the one at `checkpoint`, which took its place: a
/// save on several nodes' own disks died before all of them had replaced theirs. Nothing where
/// there is none, as when tidy_checkpoint() has begun to remove it. recover_checkpoint() comes
/// first.
absl::StatusOr<std::optional<Manifest>> replaced_checkpoint(FileSystem& files,
                                                            const std::string& checkpoint);

/// Puts that one back in place of the newer, with what lies in there besides the newer's own files;
/// tidy_checkpoint() removes the newer. If this dies, one of the two has the name, or
/// recover_checkpoint() gives it the older, and what was not done can be done again.
/// Errors: NotFound where there is none.
absl::Status restore_replaced(FileSystem& files, const std::string& checkpoint);

/// Removes what was staged.
absl::Status abandon_checkpoint(FileSystem& files, const std::string& checkpoint);

/// The manifest of a complete checkpoint: all its files are there, with the right sizes. What is in
/// them is verified by whoever reads them, or by verify_checkpoint.
/// Errors: NotFound, or DataLoss saying what is missing or wrong.
absl::StatusOr<Manifest> check_checkpoint(FileSystem& files, const std::string& checkpoint);

/// The same, with every file's checksum. Reads everything.
absl::StatusOr<Manifest> verify_checkpoint(FileSystem& files, const std::string& checkpoint);

/// The same for the files that whoever reads a checkpoint does not verify by itself: those that the
/// library did not write.
absl::Status verify_other_files(FileSystem& files, const std::string& checkpoint,
                                const Manifest& manifest);

struct FoundCheckpoint {
  std::string path;
  int64_t number = 0;
  Manifest manifest;
};
/// What looks like a checkpoint and is none, or could not be looked at.
struct SkippedCheckpoint {
  std::string path;
  int64_t number = 0;
  absl::Status why;
};
struct FoundCheckpoints {
  /// Complete ones, by number.
  std::vector<FoundCheckpoint> complete;
  std::vector<SkippedCheckpoint> skipped;
};

/// Looks through the folders in `folder` that have a number in their names. A folder that is not
/// there has none.
absl::StatusOr<FoundCheckpoints> find_checkpoints(FileSystem& files, const std::string& folder);

/// The complete checkpoint with the highest number; nothing where there is none. `skipped` gets
/// those that are not complete and newer.
absl::StatusOr<std::optional<FoundCheckpoint>> latest_complete(
    FileSystem& files, const std::string& folder,
    std::vector<SkippedCheckpoint>* skipped = nullptr);

/// Removes the oldest complete checkpoints in `folder` until `limit` are left. `newest` stays in
/// any case, so a limit of 0 keeps one; and so does the last durable one. What is not a complete
/// checkpoint stays and does not count. `damaged`: paths of checkpoints that look complete, but
/// that a load rejected; they go before all others, and none of them is the last durable one.
absl::Status rotate_checkpoints(FileSystem& files, const std::string& folder, int64_t limit,
                                const std::string& newest,
                                const std::set<std::string>& damaged = {});

}  // namespace accelerate
