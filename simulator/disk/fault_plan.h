/// One run's file faults: counts each rank's operations, says what becomes of them, and knows which
/// ranks are dead.
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
    /// Called on the rank's thread before each of its operations; may let other ranks go.
    std::function<void(int rank)> before_operation;
    /// No rank lives any more.
    std::function<void()> machine_died;
  };
  /// Each fault can fire; see FileFault::problem. `disk` may be null if there are none.
  FaultPlan(std::vector<FileFault> faults, int world_size, uint64_t seed,
            std::shared_ptr<SimDisk> disk, Hooks hooks);

  /// The run is over: operations are no longer counted, faults no longer fire.
  void end();

  struct Operation {
    int rank = 0;
    const char* name = "";
    std::string path = {};
    int64_t bytes = 0;        ///< to be read or written
    bool needs_room = false;  ///< fails on a full disk
    /// Of a write: puts so many bytes on the disk, durably or not.
    std::function<void(int64_t bytes, bool durably)> write = nullptr;
    bool reads = false;
  };
  struct Verdict {
    absl::Status status;  ///< unless OK, the operation is not done, and returns it
    std::optional<int64_t> flipped_bit = {};  ///< among those read
    bool on_medium = false;
  };
  /// Errors: RankKilled where a dead rank keeps trying.
  Verdict begin(const Operation& operation);

  /// The same for files elsewhere, where nothing is counted and no fault fires.
  absl::Status begin_elsewhere(int rank);

  bool is_dead(int rank) const { return !deaths_[rank].empty(); }
  /// Errors: RankKilled if the rank is dead.
  void check_alive(int rank) const;
  /// The RankKilled of a dead rank.
  std::exception_ptr death(int rank) const;

  /// The faults that had an effect, in order.
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
