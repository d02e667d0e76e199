/// Faults of a simulated cluster's files, and the operations at which they occur.
///
///   Cluster cluster("1x2", {.seed = 7, .disk = disk,
///                           .file_faults = {{.rank = 1, .operation = 17,
///                                            .kind = FileFaultKind::kMachineDies}}});
///
/// A fault names a rank and one of its file operations by number. All calls on files of the disk
/// are counted, from 0 in the order of the program: open, create, info, list, make_directories,
/// rename, exchange, remove, sync_directory, read_at, map, write_at, sync and close.
/// SimDisk::operations is the number of calls in a run.
///
/// A dead rank has no further effect, even if its program goes on. Its fatal file operation and all
/// later ones return Aborted, because files do not throw and destructors rely on that. Every later
/// use of groups, the store, sleep_for, reports and background work throws RankKilled; so do files
/// if the program retries them too often.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>

#include "simulator/disk/sim_disk.h"

namespace accelerate::simulator {

enum class FileFaultKind {
  /// The rank dies before the operation. Its earlier writes stay.
  kRankDies,
  /// All ranks die before the operation, and data that is not durable is lost.
  kMachineDies,
  /// Like kMachineDies, but in the middle of a write, whose beginning is durable. An operation that
  /// does
  /// not write is not done.
  kTornWrite,
  /// Affects all ranks. A part of the first write fits; then create, make_directories, write_at,
  /// sync and
  /// close return ResourceExhausted.
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

}  // namespace accelerate::simulator
