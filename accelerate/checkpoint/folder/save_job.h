/// How ranks write a checkpoint together.
///
/// A SaveJob is one rank's share: its files go into the staging folder, its outcome to the other
/// ranks, and one rank (or one rank of each node) commits. Either all ranks learn that the
/// checkpoint is complete, or all throw the same CheckpointError, which names every rank that
/// failed and why; the checkpoint before is then untouched. A SaveExchange carries the outcomes
/// between the ranks, in rounds: in each round every rank publishes one outcome and collects those
/// of all ranks.
///
/// Threads: one at a time; a job uses only files and the exchange, so it can run behind training.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accelerate/checkpoint/folder/checkpoint_folder.h"
#include "accelerate/checkpoint/folder/checkpoint_parts.h"
#include "accelerate/comm/agree.h"
#include "accelerate/platform/file_system.h"

namespace accelerate {

class SaveExchange {
 public:
  virtual ~SaveExchange() = default;

  virtual void publish(int round, const internal::RankOutcome& own) = 0;

  /// All ranks' outcomes, by rank; nothing while one is missing. The text of a rank that failed is
  /// there for all ranks; other texts only for the ranks that were made to read them.
  virtual std::optional<std::vector<internal::RankOutcome>> collect(int round) = 0;

  /// beat() tells the others that this rank is still at work; beats() counts the calls of all
  /// ranks. Threads: any.
  virtual void beat() {}
  virtual int64_t beats() { return 0; }

  /// Removes the save's entries. Rank 0 calls it when all ranks have left the save.
  virtual void remove_entries() {}
};

struct SaveExchangeOptions {
  int rank = 0;
  int world_size = 1;
  /// The ranks whose texts this rank reads, ascending; others' texts are read only where they
  /// failed. Each text has one reader.
  std::vector<int> reads;
  /// The same on all ranks, and another one for each save.
  std::string id;
};

/// Exchanges by the job's store: no rank waits, and no collective disturbs those of training.
std::unique_ptr<SaveExchange> make_store_exchange(c10::intrusive_ptr<c10d::Store> store,
                                                  SaveExchangeOptions options);

/// Exchanges outcomes by a collective, so that collect() waits for all ranks, and texts by the
/// store, so that only their readers get them. A null group stands for one rank, which needs no
/// store.
std::unique_ptr<SaveExchange> make_group_exchange(ProcessGroupPtr group,
                                                  c10::intrusive_ptr<c10d::Store> store,
                                                  SaveExchangeOptions options);

struct SaveJobOptions {
  /// The folder that the checkpoint will be; begin_checkpoint() was called.
  std::string checkpoint;
  /// Without files.
  Manifest manifest;
  /// Whether this rank publishes the checkpoint, and the ranks whose files are in it.
  bool commits = false;
  std::vector<int> ranks;
  /// How many checkpoints stay in the folder; `damaged` ones go first (see rotate_checkpoints).
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

  /// Sets what this rank writes, or with fail() why it cannot; before the first step. `snapshot` is
  /// what is still to be copied into the parts, or null.
  void set_parts(std::vector<CheckpointPart> parts,
                 std::shared_ptr<internal::DeferredCopy> snapshot) {
    parts_ = std::move(parts);
    snapshot_ = std::move(snapshot);
  }
  void fail(std::string why) { failure_ = std::move(why); }

  /// Does the next stage and returns whether it was the last. If the exchange does not wait, a call
  /// may find nothing to do yet; call it again later. Errors: CheckpointError, see above.
  bool step();

  /// True once this rank's files are written.
  bool has_written() const { return phase_ != Phase::kWrite; }
  /// The bytes that this rank wrote.
  int64_t bytes() const { return bytes_; }
  const std::shared_ptr<SaveExchange>& exchange() const { return exchange_; }
  /// A problem that does not harm the checkpoint, such as an old one that could not be removed.
  const std::string& warning() const { return warning_; }

 private:
  enum class Phase { kWrite, kCommit, kAgree };

  std::string write();
  std::string commit(const std::vector<internal::RankOutcome>& outcomes);
  void clean_up();

  UnsyncedFiles unsynced_;
  FileSystem& files_;
  const std::shared_ptr<SaveExchange> exchange_;
  SaveJobOptions options_;
  std::vector<CheckpointPart> parts_;
  std::shared_ptr<internal::DeferredCopy> snapshot_;
  std::string failure_;
  Phase phase_ = Phase::kWrite;
  std::optional<internal::RankOutcome> own_;  // of this rank's last stage, to be published
  int64_t bytes_ = 0;
  std::string warning_;
};

}  // namespace accelerate
