/// What goes wrong with a simulated cluster's files, and when.
///
///   Cluster cluster("1x2", {.seed = 7, .disk = disk,
///                           .file_faults = {{.rank = 1, .operation = 17,
///                                            .kind = FileFaultKind::kMachineDies}}});
///
/// A fault names a rank and one of its file operations by number. Counted are, from 0 in the order
/// of the program, all calls on files of the disk: open, create, info, list, make_directories,
/// rename, exchange, remove, sync_directory, read_at, map, write_at, sync and close;
/// SimDisk::operations says how many a run made.
///
/// A rank that is dead has no effect on anything any more, whatever its program still does. Its
/// fatal file operation and all later ones return Aborted: files do not throw, and destructors rely
/// on that. RankKilled is thrown by what comes next of groups, the store, sleep_for, reports and
/// background work, and again each time; and by files, should the program try them without end.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>

#include "simulator/disk/sim_disk.h"

namespace accelerate::simulator {

enum class FileFaultKind {
  /// The rank dies, the operation is not done. What it wrote before stays.
  kRankDies,
  /// So do all ranks, and what is not durable is lost.
  kMachineDies,
  /// The same in the middle of a write, of which the beginning is on the disk for good. Of an
  /// operation that writes nothing, nothing is done.
  kTornWrite,
  /// For all ranks. Of the first write a part fits; then create, make_directories, write_at, sync
  /// and close return ResourceExhausted.
  kDiskFull,
  /// The rank's operations are not done and return DataLoss.
  kInputOutputError,
  /// What read_at or map returns has a wrong bit. No effect on other operations.
  kBitFlip,
};

struct FileFault {
  static constexpr int64_t kForever = std::numeric_limits<int64_t>::max();

  int rank = 0;
  int64_t operation = 0;
  FileFaultKind kind = FileFaultKind::kRankDies;
  /// kDiskFull, kInputOutputError: the rank's first operation after it.
  int64_t until = kForever;
  /// kMachineDies, kTornWrite: see Unsynced.
  Unsynced unsynced = Unsynced::kLost;
  /// kTornWrite: how many bytes are written; otherwise drawn from the seed.
  std::optional<int64_t> bytes = {};
  /// kBitFlip: which bit of those read, modulo their number; otherwise drawn from the seed.
  std::optional<int64_t> bit = {};
  /// kBitFlip: whether the disk has it wrong from now on, or this one read had.
  bool on_medium = false;

  /// As C++ source.
  std::string to_string() const;
  /// Why it can never fire; empty if it can.
  std::string problem(int world_size) const;
};

/// A rank died by a FileFault. Programs do not catch it on purpose, and gain nothing by it.
class RankKilled : public std::runtime_error {
 public:
  RankKilled(const std::string& message, bool is_cause)
      : std::runtime_error(message), is_cause_(is_cause) {}

  /// Whether the fault was this rank's own, not that of a rank it shared the machine with.
  bool is_cause() const { return is_cause_; }

 private:
  bool is_cause_;
};

}  // namespace accelerate::simulator
