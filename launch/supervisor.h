/// Starts the ranks, passes their output and the launcher's signals along, and sees them all off.
///
/// Last two steps of the launcher: spawn and supervise. One loop around poll does everything; it
/// never blocks elsewhere, so signals are answered even while nobody reads the output.
///
///     launcher -+- rank 0   process group of its own, killed if the launcher dies
///               +- rank 1   ... what a rank starts is in the rank's group
///               `- guard    kills the groups if the launcher was killed (orphan_guard.h)
///
/// What a rank leaves behind when it ends may go on while other ranks run; it is killed when the
/// launcher ends. A process that left its rank's group is adopted by the launcher and killed as
/// well, unless the launcher itself was killed.
/// Threads: the main thread of a process with no other threads.
#pragma once

#include <sys/resource.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "launch/orphan_guard.h"
#include "launch/outcome.h"
#include "launch/output_queue.h"
#include "launch/plan.h"
#include "launch/rank_output.h"
#include "launch/signal_inbox.h"

namespace accelerate::launch {

struct SupervisorOptions {
  /// From forwarding SIGINT or SIGTERM to killing the ranks that are still there.
  absl::Duration signal_grace = absl::Seconds(10);
  /// The same after a rank failed.
  absl::Duration failure_grace = absl::Seconds(5);
};

class Supervisor {
 public:
  /// Starts one process per plan; plan r is rank r. `program` is the file to execute. A single rank
  /// gets the launcher's standard streams. Several read from nothing, and write through pipes with
  /// their rank before each line.
  /// Errors: as `spawn` (child_process.h); ResourceExhausted if the machine allows too few open
  ///         files. Ranks that were started by then are killed.
  static absl::StatusOr<std::unique_ptr<Supervisor>> start(
      const std::string& program, absl::Span<const ProcessPlan> plans,
      absl::Span<const std::string> parent_environment, const SupervisorOptions& options);

  /// Kills and reaps what is left.
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// Runs until all ranks ended and their output is written; call once. Returns the launcher's
  /// exit code: 0 if every rank exited with 0; that of the first rank that failed; 128 + signal if
  /// SIGINT or SIGTERM came first; 128 + SIGPIPE if the launcher's output was closed first.
  int run();

 private:
  using Clock = std::chrono::steady_clock;

  struct Rank {
    int rank = 0;
    pid_t pid = 0;
    /// Set once the rank ended. It is reaped only at the very end: until then its process id, and
    /// with it the id of its group, cannot be given to somebody else.
    std::optional<RankExit> exit;
    /// Empty if the rank has the launcher's own streams.
    std::vector<RankOutput> outputs;
  };

  /// Why the run is being ended early, and what to exit with.
  struct Stop {
    std::string reason;
    int exit_code = 0;
    /// The rank that is to blame, if one is.
    std::optional<int> rank;
  };

  Supervisor(OrphanGuard guard, const SupervisorOptions& options);

  absl::Status spawn_ranks(const std::string& program, absl::Span<const ProcessPlan> plans,
                           absl::Span<const std::string> parent_environment);
  absl::Status spawn_rank(int rank, const std::string& program, const ProcessPlan& plan,
                          absl::Span<const std::string> parent_environment, int null_fd,
                          const rlimit& open_files);

  // The loop and what it reacts to.
  bool is_done();
  void wait_for_event(std::optional<Clock::time_point> deadline);
  std::optional<Clock::time_point> next_deadline() const;
  void handle_signals();
  void handle_stop_request(int signal);
  void suspend();
  void write_output(OutputQueue& queue);

  // The ranks.
  void observe_children(pid_t first);
  void observe(Rank& rank);
  void reap_adopted();
  bool all_exited() const;
  void signal_groups(int signal);
  void begin_stop(Stop stop, int signal, absl::Duration grace);
  void kill_groups();

  // The end.
  void end_all_processes();
  void report();
  void flush_output();

  const SupervisorOptions options_;
  OrphanGuard guard_;
  SignalInbox signals_;
  /// Children that this process had before it became a launcher; none of its business.
  std::vector<pid_t> foreign_children_;
  OutputQueue stdout_;
  OutputQueue stderr_;
  std::vector<Rank> ranks_;
  bool lent_terminal_ = false;
  std::optional<Stop> stop_;
  std::vector<int> ranks_killed_;
  std::optional<Clock::time_point> kill_deadline_;
  std::optional<Clock::time_point> drain_deadline_;
  bool impatient_ = false;  // a stop was asked for again: nothing is waited for any more
};

}  // namespace accelerate::launch
