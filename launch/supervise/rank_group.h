/// The ranks of one machine in one round: started together, ended together.
///
/// Errors that several ranks' programs end with in the same words, as accelerate::run writes them,
/// appear once, with the ranks' numbers.
///
/// Each rank is a process group of its own. A rank that ended is reaped only by `end`: until then
/// its process id, and with it the id of its group, cannot be given to another process.
/// Threads: the main thread.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "launch/process/child_process.h"
#include "launch/process/event_source.h"
#include "launch/process/orphan_guard.h"
#include "launch/process/process_plan.h"
#include "launch/process/signal_inbox.h"
#include "launch/supervise/output.h"

namespace accelerate::launcher::supervise {

/// Where one of a rank's streams goes; nowhere at all is allowed.
struct StreamTarget {
  bool console = true;
  std::string log_path;  ///< empty: no file
};

/// One rank to start.
struct RankStart {
  int rank = 0;
  int local_rank = 0;
  process::ProcessPlan plan;
  StreamTarget out;
  StreamTarget err;
};

/// How a process ended: by its own exit, or by a signal.
struct RankExit {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = 0;
  /// Exit code, or 0 if a signal ended it.
  int code = 0;
  /// Signal that ended it, or 0.
  int signal = 0;

  bool failed() const { return code != 0 || signal != 0; }

  /// The shell's convention: the exit code, or 128 + signal.
  int exit_code() const { return signal != 0 ? 128 + signal : code; }
};

/// `rank 5 (pid 1234, local rank 1 on HOST) exited with code 3`, or `… was killed by signal 9
/// (Killed)`.
std::string describe(const RankExit& exit);

/// `signal 15 (Terminated)`.
std::string describe_signal(int signal);

/// This machine's host name, for messages.
std::string host_name();

class RankGroup final : public process::EventSource {
 public:
  /// All of them outlive the group.
  RankGroup(const process::OrphanGuard& guard, const process::SignalInbox& signals,
            Console& console)
      : guard_(&guard), signals_(&signals), console_(&console) {}
  /// As `end`.
  ~RankGroup() override;

  /// Starts the ranks; call once. `program` is the file to execute. With `own_streams` a rank has
  /// the launcher's standard streams and, if it can be lent, the terminal; otherwise it reads from
  /// nothing and writes through pipes, with its rank before each line.
  /// Errors: as `spawn`; ResourceExhausted if the machine allows too few open files; those of
  ///         open_log. What was started by then is ended by the destructor.
  absl::Status start(const std::string& program, absl::Span<const RankStart> ranks,
                     absl::Span<const std::string> parent_environment, bool own_streams);

  /// A SIGCHLD came; `first` is the process that it named.
  void observe(pid_t first);

  bool has_member(pid_t pid) const;
  bool all_exited() const;
  /// Whether every rank has ended or survived SIGKILL for too long, and every output is closed or
  /// was drained for long enough.
  bool is_over();
  /// The first rank that failed before anyone stopped it.
  const std::optional<RankExit>& first_failure() const { return first_failure_; }
  /// The signal by which the rank ended that has the terminal, if a key of it sends that.
  const std::optional<int>& interruption() const { return interruption_; }

  /// Whether `stop` found a running rank.
  bool stopped_any() const { return stopped_any_; }

  /// Sends `signal` to every rank and what it started.
  void send(int signal) const;
  /// Asks all to stop and kills them after `grace`. Only the first call counts.
  void stop(int signal, absl::Duration grace);
  /// Whether `stop` was called and `end` was not.
  bool is_stopping() const { return stopping_ && !ended_; }
  void kill_now();
  /// From now on `is_over` does not wait for outputs.
  void stop_waiting() { stops_waiting_ = true; }

  /// Kills what is left, reaps the ranks, and passes on what their outputs hold.
  void end();

  /// Whether the console has the error with which the rank's program failed: its own, or an equal
  /// one of another rank.
  bool has_shown_failure(int rank) const;

  /// Ranks that had to be killed because they did not stop in time.
  const std::vector<int>& killed() const { return killed_; }
  /// The last lines of a rank on standard error, or nothing; and where all of them are.
  std::vector<std::string> tail(int rank) const;
  std::string log_path(int rank) const;

  void add_entries(std::vector<pollfd>& entries) override;
  void react(absl::Span<const pollfd> entries) override;
  std::optional<Clock::time_point> deadline() const override;

 private:
  struct Member {
    int rank = 0;
    int local_rank = 0;
    pid_t pid = 0;
    std::optional<RankExit> exit;
    /// Output and error. Empty if the rank has the launcher's own streams.
    std::vector<RankOutput> outputs;
    bool has_shown_failure = false;
  };

  absl::Status start_one(const std::string& program, const RankStart& start,
                         absl::Span<const std::string> parent_environment, int null_fd,
                         const rlimit& open_files);
  /// Makes a pipe; returns the end for the rank to write to.
  absl::StatusOr<UniqueFd> open_output(Member& member, const StreamTarget& target,
                                       OutputQueue& queue);
  void observe_one(Member& member);
  bool holds_failures() const;
  void show_failures();
  /// Waits for a process that was killed; false if it does not go.
  bool reap(pid_t pid) const;
  const Member* find(int rank) const;

  const process::OrphanGuard* guard_;
  const process::SignalInbox* signals_;
  Console* console_;
  std::vector<Member> members_;
  bool lent_terminal_ = false;
  bool stopping_ = false;
  bool ended_ = false;
  bool stopped_any_ = false;
  bool stops_waiting_ = false;
  std::optional<RankExit> first_failure_;
  std::optional<int> interruption_;
  std::vector<int> killed_;
  std::optional<Clock::time_point> kill_deadline_;
  /// When ranks that were killed and are still there are left.
  std::optional<Clock::time_point> give_up_at_;
  std::optional<Clock::time_point> drain_deadline_;
  /// When the errors of ranks are shown that wait for equal ones of others.
  std::optional<Clock::time_point> show_at_;
  /// The errors that were shown, each with the first rank that had it.
  std::map<std::string, int> shown_;
  /// The ranks' outputs that the latest `add_entries` listed.
  std::vector<RankOutput*> readers_;
};

}  // namespace accelerate::launcher::supervise
