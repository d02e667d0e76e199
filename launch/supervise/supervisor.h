/// Starts the ranks, forwards their output and the launcher's signals, and ends every process of a
/// round.
///
/// It is an event source: the agent's loop waits for it together with other sources, and looks at
/// the state of the ranks between two waits. It never blocks, so signals are handled even while
/// the output is not read.
///
///     launcher -+- rank 0   process group of its own, killed if the launcher dies
///               +- rank 1   ... what a rank starts is in the rank's group
///               `- guard    kills all of it if the launcher was killed (orphan_guard.h)
///
/// Processes that a rank leaves behind when it ends may go on while other ranks run; they are
/// killed when the round ends. A process that left its rank's group is adopted by the launcher and
/// killed as well.
/// Threads: the main thread of a process with no other threads.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "launch/process/event_source.h"
#include "launch/process/orphan_guard.h"
#include "launch/process/signal_inbox.h"
#include "launch/supervise/output.h"
#include "launch/supervise/rank_group.h"

namespace accelerate::launcher::supervise {

struct SupervisorOptions {
  /// From forwarding SIGINT, SIGTERM or SIGQUIT to killing the ranks that are still there.
  absl::Duration signal_grace = absl::Seconds(10);
  /// The same after a rank failed, here or elsewhere.
  absl::Duration failure_grace = absl::Seconds(5);
};

/// A request to end the run: SIGINT, SIGTERM, SIGQUIT, SIGHUP (the terminal was closed), or an
/// output that was closed.
struct StopRequest {
  std::string reason;
  int exit_code = 0;
};

class Supervisor final : public process::EventSource {
 public:
  /// Takes the launcher's signals over.
  /// Errors: ResourceExhausted if there was no process or descriptor to be had.
  static absl::StatusOr<std::unique_ptr<Supervisor>> create(const SupervisorOptions& options);

  /// Kills and reaps what is left.
  ~Supervisor() override;
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// Starts a round; the one before must have ended. See RankGroup::start.
  absl::Status start_ranks(const std::string& program, absl::Span<const RankStart> ranks,
                           absl::Span<const std::string> parent_environment, bool own_streams);

  /// The round's ranks; null before the first round.
  RankGroup* ranks() { return ranks_.get(); }

  /// Asks the ranks to stop, kills them when their time is up.
  void stop_ranks();

  /// Ends the round: kills what is left, also what left its rank's group.
  void end_ranks();

  const std::optional<StopRequest>& stop_request() const { return stop_request_; }
  /// Whether a second stop was requested, after which nothing is waited for.
  bool stops_waiting() const { return stops_waiting_; }

  Console& console() { return console_; }

  void add_entries(std::vector<pollfd>& entries) override;
  void react(absl::Span<const pollfd> entries) override;
  std::optional<Clock::time_point> deadline() const override;

 private:
  Supervisor(process::OrphanGuard guard, const SupervisorOptions& options);

  void handle_signals();
  void observe_ranks(pid_t first);
  void handle_stop_request(int signal);
  void request_stop(StopRequest request, int signal, absl::Duration grace);
  void suspend();
  void reap_adopted();
  void kill_adopted();

  const SupervisorOptions options_;
  // Before the guard, which at its end writes to a pipe that may be broken.
  process::SignalInbox signals_;
  process::OrphanGuard guard_;
  /// Children that this process had before it became a launcher; none of its business.
  std::vector<pid_t> foreign_children_;
  Console console_;
  std::unique_ptr<RankGroup> ranks_;
  size_t console_entries_ = 0;
  std::optional<StopRequest> stop_request_;
  bool stops_waiting_ = false;
};

}  // namespace accelerate::launcher::supervise
