/// One rank's share of writing a checkpoint: its files into the staging folder, its word to the
/// other ranks, and, on one rank (or one of each node), the commit.
///
/// Either all ranks learn that the checkpoint is complete, or all throw the same CheckpointError,
/// which names every rank that failed and why; what was there before is then untouched.
/// Threads: one at a time; it uses files and the exchange only, so it can run behind training.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "accelerate/checkpoint/folder/checkpoint_folder.h"
#include "accelerate/checkpoint/folder/checkpoint_parts.h"
#include "accelerate/checkpoint/folder/save_exchange.h"
#include "accelerate/platform/unsynced_files.h"

namespace accelerate {

struct SaveJobOptions {
  /// The folder that the checkpoint will be; begin_checkpoint() was called.
  std::string checkpoint;
  /// Without files.
  Manifest manifest;
  /// Whether this rank publishes the checkpoint, and whose files are in it.
  bool commits = false;
  std::vector<int> ranks;
  /// Then keeps so many in the checkpoint's folder, the damaged ones last; see rotate_checkpoints.
  std::optional<int64_t> total_limit;
  std::set<std::string> damaged;
  /// Whether what the ranks write is synced; names and the manifest are in any case.
  bool durable = true;
  /// Bytes written, from any thread.
  std::function<void(int64_t)> on_progress;
};

class SaveJob {
 public:
  SaveJob(FileSystem& files, std::shared_ptr<SaveExchange> exchange, SaveJobOptions options);

  /// What this rank writes, or why it cannot; before the first step. `snapshot`: what is still to
  /// be copied into the parts; null: nothing.
  void set_parts(std::vector<CheckpointPart> parts,
                 std::shared_ptr<internal::DeferredCopy> snapshot) {
    parts_ = std::move(parts);
    snapshot_ = std::move(snapshot);
  }
  void fail(std::string why) { failure_ = std::move(why); }

  /// Does what there is to do, and returns whether it was the last. With an exchange that waits,
  /// each call does something; else call it again later. Errors: CheckpointError, see above.
  bool step();

  /// Whether what is left to do is others' first.
  bool has_written() const { return stage_ != Stage::kWrite; }
  /// Of all that this rank wrote.
  int64_t bytes() const { return bytes_; }
  const std::shared_ptr<SaveExchange>& exchange() const { return exchange_; }
  /// What went wrong without harm to the checkpoint, as old ones that could not be removed.
  const std::string& warning() const { return warning_; }

 private:
  enum class Stage { kWrite, kCommit, kAgree };

  std::string write();
  std::string commit(const std::vector<SaveWord>& words);
  void clean_up();

  UnsyncedFiles unsynced_;
  FileSystem& files_;
  const std::shared_ptr<SaveExchange> exchange_;
  SaveJobOptions options_;
  std::vector<CheckpointPart> parts_;
  std::shared_ptr<internal::DeferredCopy> snapshot_;
  std::string failure_;
  Stage stage_ = Stage::kWrite;
  int64_t bytes_ = 0;
  std::string warning_;
};

}  // namespace accelerate
