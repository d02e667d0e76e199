/// The rules of membership: which machines take part in a run, and when a round starts, stops and
/// ends.
///
/// A round is one set of machines with their ranks, started together. A rank's failure ends the
/// round and uses up a restart; a machine that comes or goes ends it too and uses up none. The next
/// round starts when the ranks of the last one are gone on every machine.
///
///     forming --all are ready--> running --failure, arrival, departure--> stopping --all ready-.
///        ^                          `--all are done--> over                                    |
///        '-------------------------------------------------------------------------------------'
///
/// It uses neither sockets nor clocks: events and times come in, orders to machines come out. A run
/// on one machine follows the same rules with one member.
/// Threads: one user.
/// Mirrors: torch.distributed.elastic's dynamic and static rendezvous.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "accelerate/base/enum_text.h"

namespace accelerate::launcher::agent {

/// Which run this is; the same on all of its machines.
struct MembershipRules {
  int min_nodes = 1;
  int max_nodes = 1;
  /// Every machine brings its rank; no round without all of them, and none after one was lost.
  bool fixed_ranks = false;
  int max_restarts = 0;
  /// How long a round may take to form.
  absl::Duration join_timeout = absl::Seconds(600);
  /// How long the first round waits for more machines once there are enough.
  absl::Duration last_call_timeout = absl::Seconds(30);
  /// How long arrivals are gathered before a round is stopped for them.
  absl::Duration gather_time = absl::Milliseconds(100);
  /// Unique to this run.
  std::string run_token;
};

/// A machine, as its agent describes it in the handshake.
struct Member {
  std::string host;     ///< its name, for people
  std::string address;  ///< where the others reach it
  int processes = 1;
  std::optional<int> node_rank;
};

/// A machine's part in a round.
struct Round {
  int number = 0;  ///< 0-based
  int group_rank = 0;
  int group_count = 1;
  int first_rank = 0;
  int world_size = 1;
  std::string master_addr;
  uint16_t master_port = 0;
  int restarts = 0;       ///< how many failures there were before
  std::string run_token;  ///< the same in all rounds of the run; no other run has it
};

/// How a round failed or why a machine leaves: what to tell, and what to exit with.
struct Failure {
  int exit_code = 1;
  std::string text;
};

/// An order of the membership to a machine.
struct Order {
  enum class Kind {
    kStart,   ///< start the ranks of `round`
    kStop,    ///< stop the ranks, because of `text`, and be ready again
    kEnd,     ///< stop the ranks and exit with `exit_code`; tell `text` unless it is empty
    kNotice,  ///< tell `text`
  };
  Kind kind = Kind::kNotice;
  Round round;
  int exit_code = 0;
  std::string text;
};

class Membership {
 public:
  using MemberId = int;
  using TimePoint = std::chrono::steady_clock::time_point;

  Membership(const MembershipRules& rules, TimePoint now);

  /// A machine comes. It takes part in a round once it is ready.
  /// Errors: FailedPrecondition, in a sentence, if it cannot take part: its rank is taken or out of
  ///         range, or the run is over.
  absl::Status admit(MemberId member, Member machine);

  /// The machine has no ranks running, and would serve the next round's store at `store_port`.
  void ready(MemberId member, uint16_t store_port);
  /// A rank of the machine failed.
  void failed(MemberId member, const Failure& failure);
  /// All ranks of the machine ended well.
  void done(MemberId member);
  /// The machine is lost, or leaves.
  void lost(MemberId member, const Failure& failure);

  /// Ends the run for all, unless it is over.
  void end_run(const Failure& failure);

  /// Acts on what happened and on the time that passed. Returns the orders since the last call, in
  /// the order in which they were given.
  std::vector<std::pair<MemberId, Order>> advance(TimePoint now);

  /// When `advance` has something to do even if nothing happens.
  std::optional<TimePoint> deadline() const;

  bool is_over() const { return phase_ == Phase::kOver; }

 private:
  enum class Phase { kForming, kRunning, kStopping, kOver };

  struct Seat {
    Member machine;
    uint16_t store_port = 0;
    bool is_ready = false;
    bool takes_part = false;  // in the round that runs or is being stopped
    bool is_done = false;
    int order = 0;  // of coming
  };

  void advance_forming(TimePoint now);
  void advance_running(TimePoint now);
  void advance_stopping(TimePoint now);
  void start_round();
  void stop_round(const std::string& why);
  void end(int exit_code, const std::string& text);
  void end_failed(const Failure& failure);
  std::vector<MemberId> candidates() const;
  int ready_count() const;
  std::string arrived_text() const;
  std::string missing_text() const;

  const MembershipRules rules_;
  Phase phase_ = Phase::kForming;
  std::map<MemberId, Seat> seats_;
  int arrivals_ = 0;
  int rounds_ = 0;
  int restarts_ = 0;

  // Forming.
  TimePoint forming_since_;
  std::optional<TimePoint> enough_since_;
  bool announced_waiting_ = false;
  // Running.
  std::optional<TimePoint> arrival_at_;
  // Stopping.
  std::optional<Failure> failure_;
  bool membership_changed_ = false;

  std::vector<std::pair<MemberId, Order>> orders_;
};

}  // namespace accelerate::launcher::agent

namespace accelerate {

ACCELERATE_ENUM_TEXTS(launcher::agent::Order::Kind, "order", "start", "stop", "end", "notice")

}  // namespace accelerate
