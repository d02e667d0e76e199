/// Faults of a simulated cluster's files, and the operations at which they occur.
///
///   Cluster cluster("1x2", {.seed = 7, .disk = disk,
///                           .file_faults = {{.rank = 1, .operation = 17,
///                                            .kind = FileFaultKind::kMachineDies}}});
///
/// A fault names a rank and one of its file operations by number. All calls on files of the disk
/// are counted, from 0 in the order of the program: open, create, open_scratch, info, list,
/// make_directories, rename, exchange, remove, sync_directory, read_at, map, write_at, sync and
/// close.
/// SimDisk::operations is the number of calls in a run.
///
/// A dead rank has no further effect, even if its program goes on. Its fatal file operation and all
/// later ones return Aborted, because files do not throw and destructors rely on that. Every later
/// use of groups, the store, sleep_for, reports and background work throws RankKilled; so do files
/// if the program retries them too often.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate::simulator {

enum class FileFaultKind {
  /// The rank dies before the operation. Its earlier writes stay.
  kRankDies,
  /// All ranks die before the operation, and data that is not durable is lost.
  kMachineDies,
  /// Like kMachineDies, but in the middle of a write, whose beginning is durable. An operation that
  /// does not write is not done.
  kTornWrite,
  /// Affects all ranks. A part of the first write fits; then create, open_scratch,
  /// make_directories, write_at, sync and close return ResourceExhausted.
  kDiskFull,
  /// The rank's operations are not done and return DataLoss.
  kInputOutputError,
  /// The result of read_at or map has a wrong bit. No effect on other operations.
  kBitFlip,
};

struct FileFault {
  static constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

  int rank = 0;
  int64_t operation = 0;
  FileFaultKind kind = FileFaultKind::kRankDies;
  /// kDiskFull, kInputOutputError: the rank's first operation after the fault.
  int64_t until = kForever;
  /// kMachineDies, kTornWrite: see Unsynced.
  Unsynced unsynced = Unsynced::kLost;
  /// kTornWrite: the number of bytes written; by default drawn from the seed.
  std::optional<int64_t> bytes = {};
  /// kBitFlip: the index of the bit among those read, modulo their number; by default drawn from
  /// the seed.
  std::optional<int64_t> bit = {};
  /// kBitFlip: true if the bit is wrong on the disk from now on, false if only in this read.
  bool on_medium = false;

  /// The fault as C++ source.
  std::string to_string() const;
  /// The reason why the fault can never fire; empty if it can.
  std::string problem(int world_size) const;
};

/// Thrown on a rank that a FileFault killed. A program that catches it stays dead.
class RankKilled : public std::runtime_error {
 public:
  RankKilled(const std::string& message, bool is_cause)
      : std::runtime_error(message), is_cause_(is_cause) {}

  /// True if the fault was this rank's own, false if it was that of another rank on the machine.
  bool is_cause() const { return is_cause_; }

 private:
  bool is_cause_;
};

/// The file faults of one run: counts each rank's operations, decides their results, and keeps the
/// set of dead ranks. Threads: only the rank that holds the baton may call in.
class FaultPlan {
 public:
  struct Hooks {
    /// Called on the rank's thread before each of its operations; may let other ranks run.
    std::function<void(int rank)> before_operation;
    /// Called when all ranks have died.
    std::function<void()> machine_died;
  };
  /// Each fault must be able to fire; see FileFault::problem. `disk` may be null if there are no
  /// faults.
  FaultPlan(std::vector<FileFault> faults, int world_size, uint64_t seed,
            std::shared_ptr<SimDisk> disk, Hooks hooks);

  /// Ends the run: operations are no longer counted, and faults no longer fire.
  void end();

  struct Operation {
    int rank = 0;
    const char* name = "";
    std::string path = {};
    int64_t bytes = 0;        ///< the number to read or write
    bool needs_room = false;  ///< whether the operation fails on a full disk
    /// For a write: puts that many of its bytes on the disk, durably or not.
    std::function<void(int64_t bytes, bool durably)> write = nullptr;
    bool reads = false;
  };
  struct Verdict {
    absl::Status status;  ///< if not OK, the operation is not done and returns this status
    std::optional<int64_t> flipped_bit = {};  ///< index among the bits read
    bool on_medium = false;
  };
  /// Errors: RankKilled if a dead rank retries too often.
  Verdict begin(const Operation& operation);

  /// Before an operation that begin() does not see: lets other ranks run.
  void run_other_ranks(int rank) {
    if (!is_dead(rank) && hooks_.before_operation) hooks_.before_operation(rank);
  }
  /// Refuses the operation if the rank is dead: after an operation waited, and for files outside
  /// the disk, which are not counted and have no faults. Errors: as begin().
  absl::Status refuse_if_dead(int rank);

  bool is_dead(int rank) const { return !deaths_[rank].empty(); }
  /// Errors: RankKilled if the rank is dead.
  void check_alive(int rank) const;
  /// The RankKilled of a dead rank.
  std::exception_ptr death(int rank) const;

  /// The faults that had an effect, in order of time.
  const std::vector<std::string>& fired() const { return fired_; }

 private:
  absl::Status refuse(int rank);
  void fire(size_t fault, const std::string& what, const Operation& operation);
  void kill_machine(size_t fault, const Operation& operation, int64_t written);
  DeterministicRandom random_for(size_t fault) const;

  const std::vector<FileFault> faults_;
  const uint64_t seed_;
  const std::shared_ptr<SimDisk> disk_;
  Hooks hooks_;
  bool has_ended_ = false;
  std::vector<bool> has_fired_;      // by fault
  std::vector<std::string> deaths_;  // by rank; empty: alive
  std::vector<bool> is_cause_;       // by rank
  std::vector<int> refused_;         // by rank: operations since it died
  std::vector<std::string> fired_;
};

}  // namespace accelerate::simulator
