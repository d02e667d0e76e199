/// The file faults of one run: counts each rank's operations, decides their results, and keeps the
/// set of dead ranks.
///
/// Threads: only the rank that holds the baton may call in.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "simulator/disk/file_faults.h"
#include "simulator/disk/sim_disk.h"

namespace accelerate::simulator {

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

  /// The same for files outside the disk, which are not counted and have no faults.
  absl::Status begin_elsewhere(int rank);

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
