/// Which ranks of a run are dead, and what killed them.
///
/// A dead rank has no further effect, even if its program goes on: what it asks of the simulator
/// throws RankKilled, and files return Aborted, because files do not throw and destructors rely on
/// that.
/// Threads: only the rank that holds the baton may call in.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace accelerate::simulator {

/// Thrown on a rank that a fault killed. A program that catches it stays dead.
class RankKilled : public std::runtime_error {
 public:
  RankKilled(const std::string& message, bool is_cause)
      : std::runtime_error(message), is_cause_(is_cause) {}

  /// True if the fault was this rank's own, false if another rank took it along.
  bool is_cause() const { return is_cause_; }

 private:
  bool is_cause_;
};

class Deaths {
 public:
  explicit Deaths(int world_size) : deaths_(world_size) {}

  /// No effect on a dead rank. `how` is the whole message of its RankKilled.
  void kill(int rank, std::string how, bool is_cause) {
    if (!is_dead(rank)) deaths_[rank] = {.how = std::move(how), .is_cause = is_cause};
  }

  bool is_dead(int rank) const { return !deaths_[rank].how.empty(); }
  /// Errors: RankKilled if the rank is dead.
  void check_alive(int rank) const {
    if (is_dead(rank)) throw RankKilled(deaths_[rank].how, deaths_[rank].is_cause);
  }
  /// The RankKilled of a dead rank.
  std::exception_ptr death(int rank) const {
    return std::make_exception_ptr(RankKilled(deaths_[rank].how, deaths_[rank].is_cause));
  }
  /// Aborted, for a file operation of a dead rank. Errors: RankKilled if the rank retries too
  /// often.
  absl::Status refuse(int rank) {
    // A program whose operations were refused this often is in a loop, not in a destructor: during
    // unwinding an exception out of that would end the program.
    constexpr int kRefusals = 10'000;
    if (++deaths_[rank].refused > kRefusals && std::uncaught_exceptions() == 0) check_alive(rank);
    return absl::AbortedError(deaths_[rank].how);
  }

 private:
  struct Death {
    std::string how;  // empty: alive
    bool is_cause = false;
    int refused = 0;  // operations on files since it died
  };
  std::vector<Death> deaths_;  // by rank
};

}  // namespace accelerate::simulator
