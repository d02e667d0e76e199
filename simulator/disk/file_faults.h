/// Faults of a simulated cluster's files, and the operations at which they occur.
///
///   Cluster cluster("1x2", {.seed = 7, .disk = disk,
///                           .file_faults = {{.rank = 1, .operation = 17,
///                                            .kind = FileFaultKind::kMachineDies}}});
///
/// They are rules of simulator/faults inside (rule_of), and a run's plan may have more of them.
///
/// A fault names a rank and one of its file operations by number. All calls on files of the disk
/// are counted, from 0 in the order of the program: open, create, open_scratch, info, list,
/// make_directories, rename, exchange, remove, sync_directory, read_at, map, write_at, sync and
/// close.
/// SimDisk::operations is the number of calls in a run.
///
/// A dead rank has no further effect, even if its program goes on (simulator/faults/deaths.h). Its
/// fatal file operation and all later ones return Aborted. Every later use of groups, the store,
/// sleep_for, reports and background work throws RankKilled; so do files if the program retries
/// them too often.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "simulator/disk/sim_disk.h"
#include "simulator/faults/deaths.h"
#include "simulator/faults/fault_run.h"
#include "simulator/faults/rules.h"
#include "simulator/faults/sites.h"

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

/// The same fault as a rule of a plan.
FaultRule rule_of(const FileFault& fault);

/// The faults of files in one run: counts each rank's operations and decides their results.
/// Threads: only the rank that holds the baton may call in.
class FaultPlan {
 public:
  struct Hooks {
    /// Called on the rank's thread before each of its operations; may let other ranks run.
    std::function<void(int rank)> before_operation = nullptr;
    /// Called when several ranks have died.
    std::function<void()> machine_died = nullptr;
    /// The disk that a rank uses, where each node has its own; null: all use the same.
    std::function<SimDisk*(int rank)> disk_of = nullptr;
    /// The ranks that die with the machine of a rank; null: all.
    std::function<std::vector<int>(int rank)> machine_of = nullptr;
    /// The run's set of dead ranks; null: one of its own.
    std::shared_ptr<Deaths> deaths = nullptr;
    /// The run's plan, which may strike files as well; null: none. Outlives end().
    FaultSites* sites = nullptr;
  };
  /// Each fault must be able to fire; see FileFault::problem. `disk` may be null if there are no
  /// faults.
  FaultPlan(const std::vector<FileFault>& faults, int world_size, uint64_t seed,
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
    /// On files of the machine, which faults refuse but never damage. Whether other ranks run
    /// before it is the caller's to decide: a plan or a log must not change that.
    bool on_host = false;
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

  /// Whether operations on the machine's files are sites of the run's plan.
  bool watches_host() const { return hooks_.sites != nullptr; }

  bool is_dead(int rank) const { return deaths_->is_dead(rank); }
  /// Errors: RankKilled if the rank is dead.
  void check_alive(int rank) const { deaths_->check_alive(rank); }
  /// The RankKilled of a dead rank.
  std::exception_ptr death(int rank) const { return deaths_->death(rank); }

  /// The faults that had an effect, in order of time.
  const std::vector<std::string>& fired() const { return fired_; }

 private:
  void strike(SiteFault fault, bool of_plan, const Operation& operation, Verdict& verdict);
  void strike_lasting(const SiteFault& fault, bool of_plan, const Operation& operation,
                      Verdict& verdict);
  void note(const SiteFault& fault, bool of_plan, const std::string& what,
            const Operation& operation);
  void kill_machine(const SiteFault& fault, bool of_plan, const Operation& operation,
                    int64_t written);
  SimDisk* disk_of(int rank) const;

  FaultRun own_;  // the rules that FileFaults are
  const std::shared_ptr<SimDisk> disk_;
  Hooks hooks_;
  const std::shared_ptr<Deaths> deaths_;
  bool has_ended_ = false;
  std::set<std::pair<bool, size_t>> noted_;  // rules of the run's plan, or its own, with an effect
  std::vector<int64_t> operations_;          // by rank
  std::vector<std::string> fired_;
};

}  // namespace accelerate::simulator
