#include "launch/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/log/absl_check.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "launch/child_list.h"
#include "launch/child_process.h"
#include "launch/foreground_terminal.h"

namespace accelerate::launch {
namespace {

constexpr char kSpeaker[] = "accelerate launch: ";

// After the last rank: how long to listen to a pipe that something a rank started still holds.
constexpr std::chrono::milliseconds kDrainGrace(500);

// How long to wait for killed processes to go; one that is stuck in the kernel may take for ever.
constexpr std::chrono::seconds kReapGrace(2);
constexpr int kReapPollMs = 20;

// Besides the ranks' pipes: standard streams, guard, signals, socket, and pipes during a spawn.
constexpr rlim_t kOtherFiles = 64;

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

absl::StatusOr<Pipe> open_output_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot open a pipe: ", std::strerror(errno)));
  }
  Pipe pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
  // Only this end: the writing end is the rank's, which expects writes to wait.
  fcntl(pipe.read_end.get(), F_SETFL, O_NONBLOCK);
  return pipe;
}

// Says no at once in the usual case, in which /proc need not be searched.
bool has_children() {
  siginfo_t info = {};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

// Makes room for the pipes. Returns the limit of before, which the ranks get back.
absl::StatusOr<rlimit> raise_open_files(size_t num_ranks) {
  rlimit original = {};
  getrlimit(RLIMIT_NOFILE, &original);
  const rlim_t needed = 2 * num_ranks + kOtherFiles;
  if (original.rlim_cur >= needed) return original;
  const rlimit raised = {.rlim_cur = needed, .rlim_max = original.rlim_max};
  if (needed > original.rlim_max || setrlimit(RLIMIT_NOFILE, &raised) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat(num_ranks, " ranks need ", needed,
                                                     " open files; the limit (ulimit -n) is ",
                                                     original.rlim_max));
  }
  return original;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Supervisor>> Supervisor::start(
    const std::string& program, absl::Span<const ProcessPlan> plans,
    absl::Span<const std::string> parent_environment, const SupervisorOptions& options) {
  ABSL_CHECK(!plans.empty());
  absl::StatusOr<OrphanGuard> guard = OrphanGuard::start();
  if (!guard.ok()) return guard.status();
  std::unique_ptr<Supervisor> supervisor(new Supervisor(*std::move(guard), options));
  if (absl::Status ok = supervisor->spawn_ranks(program, plans, parent_environment); !ok.ok()) {
    return ok;
  }
  return supervisor;
}

Supervisor::Supervisor(OrphanGuard guard, const SupervisorOptions& options)
    : options_(options),
      guard_(std::move(guard)),
      foreign_children_(has_children() ? children_of(getpid()) : std::vector<pid_t>()),
      stdout_(STDOUT_FILENO),
      stderr_(STDERR_FILENO) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Supervisor::~Supervisor() { end_all_processes(); }

absl::Status Supervisor::spawn_ranks(const std::string& program,
                                     absl::Span<const ProcessPlan> plans,
                                     absl::Span<const std::string> parent_environment) {
  absl::StatusOr<rlimit> open_files = raise_open_files(plans.size());
  if (!open_files.ok()) return open_files.status();
  UniqueFd null_fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  lent_terminal_ = plans.size() == 1 && owns_terminal();
  ranks_.reserve(plans.size());
  for (size_t rank = 0; rank < plans.size(); ++rank) {
    absl::Status ok = spawn_rank(static_cast<int>(rank), program, plans[rank], parent_environment,
                                 plans.size() > 1 ? null_fd.get() : -1, *open_files);
    if (!ok.ok()) {
      return absl::Status(ok.code(), absl::StrCat("cannot start rank ", rank, ": ", ok.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status Supervisor::spawn_rank(int rank, const std::string& program, const ProcessPlan& plan,
                                    absl::Span<const std::string> parent_environment, int null_fd,
                                    const rlimit& open_files) {
  ExecImage image(program, plan.argv, apply_overlay(parent_environment, plan.environment));
  ChildSetup setup = {.stdin_fd = null_fd,
                      .inherited_fds = plan.inherited_fds,
                      .takes_terminal = lent_terminal_,
                      .open_files = open_files};
  Rank started = {.rank = rank};
  UniqueFd write_ends[2];
  if (null_fd >= 0) {
    for (OutputQueue* queue : {&stdout_, &stderr_}) {
      absl::StatusOr<Pipe> pipe = open_output_pipe();
      if (!pipe.ok()) return pipe.status();
      write_ends[queue == &stderr_] = std::move(pipe->write_end);
      started.outputs.emplace_back(std::move(pipe->read_end), absl::StrCat("[rank ", rank, "] "),
                                   *queue);
    }
    setup.stdout_fd = write_ends[0].get();
    setup.stderr_fd = write_ends[1].get();
  }
  absl::StatusOr<pid_t> pid = spawn(image, setup, signals_, guard_);
  if (!pid.ok()) return pid.status();
  started.pid = *pid;
  ranks_.push_back(std::move(started));
  return absl::OkStatus();
}

int Supervisor::run() {
  while (!is_done()) {
    wait_for_event(next_deadline());
    if (kill_deadline_ && Clock::now() >= *kill_deadline_) kill_groups();
  }
  end_all_processes();
  for (Rank& rank : ranks_) {
    for (RankOutput& output : rank.outputs) output.finish();
  }
  report();
  flush_output();
  return stop_ ? stop_->exit_code : 0;
}

bool Supervisor::is_done() {
  if (!all_exited()) return false;
  if (!drain_deadline_) drain_deadline_ = Clock::now() + kDrainGrace;
  const bool silent = std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return std::none_of(rank.outputs.begin(), rank.outputs.end(),
                        [](const RankOutput& output) { return output.is_open(); });
  });
  return silent || impatient_ || Clock::now() >= *drain_deadline_;
}

std::optional<Supervisor::Clock::time_point> Supervisor::next_deadline() const {
  if (drain_deadline_ && kill_deadline_) return std::min(*drain_deadline_, *kill_deadline_);
  return drain_deadline_ ? drain_deadline_ : kill_deadline_;
}

void Supervisor::wait_for_event(std::optional<Clock::time_point> deadline) {
  std::vector<pollfd> entries = {{.fd = signals_.fd(), .events = POLLIN, .revents = 0}};
  for (OutputQueue* queue : {&stdout_, &stderr_}) {
    // poll passes over negative descriptors.
    entries.push_back({.fd = queue->empty() ? -1 : queue->fd(), .events = POLLOUT, .revents = 0});
  }
  std::vector<RankOutput*> readers;
  for (Rank& rank : ranks_) {
    for (RankOutput& output : rank.outputs) {
      if (!output.wants_data()) continue;
      readers.push_back(&output);
      entries.push_back({.fd = output.fd(), .events = POLLIN, .revents = 0});
    }
  }
  int timeout_ms = -1;
  if (deadline) {
    // Rounded up, lest the loop spins through the last millisecond.
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now());
    timeout_ms = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1'000'000'000));
  }
  if (poll(entries.data(), entries.size(), timeout_ms) <= 0) return;
  // Signals first: whose exit comes first decides who is blamed.
  if (entries[0].revents != 0) handle_signals();
  if (entries[1].revents != 0) write_output(stdout_);
  if (entries[2].revents != 0) write_output(stderr_);
  for (size_t i = 0; i < readers.size(); ++i) {
    if (entries[3 + i].revents != 0 && readers[i]->wants_data()) readers[i]->read_some();
  }
}

void Supervisor::handle_signals() {
  while (std::optional<signalfd_siginfo> info = signals_.next()) {
    const int signal = static_cast<int>(info->ssi_signo);
    switch (signal) {
      case SIGCHLD:
        // Several exits merge into one signal, which then names the first of them.
        observe_children(static_cast<pid_t>(info->ssi_pid));
        break;
      case SIGINT:
      case SIGTERM: handle_stop_request(signal); break;
      case SIGTSTP: suspend(); break;
      default: signal_groups(signal);
    }
  }
}

void Supervisor::handle_stop_request(int signal) {
  if (stop_ || all_exited()) {
    impatient_ = true;
    if (!all_exited()) kill_groups();
    return;
  }
  begin_stop({.reason = absl::StrCat("received ", describe_signal(signal), "; stopped the ranks"),
              .exit_code = 128 + signal},
             signal, options_.signal_grace);
}

void Supervisor::suspend() {
  signal_groups(SIGTSTP);
  signals_.suspend(getpid());
  signal_groups(SIGCONT);
}

void Supervisor::write_output(OutputQueue& queue) {
  const absl::Status written = queue.write_some();
  if (written.ok()) return;
  const bool is_stdout = &queue == &stdout_;
  const absl::string_view name = is_stdout ? "standard output" : "standard error";
  if (absl::IsUnavailable(written)) {
    begin_stop({.reason = absl::StrCat(name, " was closed; stopped the ranks"),
                .exit_code = 128 + SIGPIPE},
               SIGTERM, options_.failure_grace);
    return;
  }
  // A full disk under the log is no reason to lose the training.
  absl::StrAppend(&(is_stdout ? stderr_ : stdout_).pending(), kSpeaker, "cannot write to ", name,
                  " (", written.message(), "); the rest of it is lost\n");
}

void Supervisor::observe_children(pid_t first) {
  for (Rank& rank : ranks_) {
    if (rank.pid == first) observe(rank);
  }
  for (Rank& rank : ranks_) observe(rank);
  reap_adopted();
}

void Supervisor::observe(Rank& rank) {
  if (rank.exit) return;
  siginfo_t info = {};
  if (lent_terminal_ && waitid(P_PID, rank.pid, &info, WSTOPPED | WNOHANG) == 0 &&
      info.si_pid == rank.pid) {
    // Ctrl-Z reached only the rank, whose group is in the foreground: follow it, as one job.
    take_terminal_back(rank.pid);
    signals_.suspend(0);
    lend_terminal(rank.pid);
    kill(-rank.pid, SIGCONT);
  }
  info = {};
  if (waitid(P_PID, rank.pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
  rank.exit = {.rank = rank.rank, .pid = rank.pid};
  (info.si_code == CLD_EXITED ? rank.exit->code : rank.exit->signal) = info.si_status;
  if (lent_terminal_) take_terminal_back(rank.pid);
  if (stop_ || !rank.exit->failed()) return;
  begin_stop({.reason = absl::StrCat(describe(*rank.exit),
                                     all_exited() ? "" : "; stopped the other ranks"),
              .exit_code = rank.exit->exit_code(),
              .rank = rank.rank},
             SIGTERM, options_.failure_grace);
}

void Supervisor::reap_adopted() {
  siginfo_t info = {};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
    // A rank that ended hides what is behind it from this call; the end of the run reaps the rest.
    for (const Rank& rank : ranks_) {
      if (rank.pid == info.si_pid) return;
    }
    waitpid(info.si_pid, nullptr, WNOHANG);
    info = {};
  }
}

bool Supervisor::all_exited() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const Rank& rank) { return rank.exit.has_value(); });
}

void Supervisor::signal_groups(int signal) {
  for (const Rank& rank : ranks_) kill(-rank.pid, signal);
}

void Supervisor::begin_stop(Stop stop, int signal, absl::Duration grace) {
  if (stop_) return;
  stop_ = std::move(stop);
  signal_groups(signal);
  // A suspended process would not notice before it is killed.
  signal_groups(SIGCONT);
  kill_deadline_ = Clock::now() + absl::ToChronoMilliseconds(grace);
}

void Supervisor::kill_groups() {
  kill_deadline_.reset();
  for (const Rank& rank : ranks_) {
    if (!rank.exit) ranks_killed_.push_back(rank.rank);
  }
  signal_groups(SIGKILL);
}

void Supervisor::end_all_processes() {
  signal_groups(SIGKILL);
  for (Rank& rank : ranks_) {
    waitpid(rank.pid, nullptr, 0);
    if (lent_terminal_) take_terminal_back(rank.pid);
  }
  // What left its rank's group became a child of this process when its parent went.
  const Clock::time_point deadline = Clock::now() + kReapGrace;
  while (Clock::now() < deadline) {
    pid_t reaped;
    do {
      reaped = waitpid(-1, nullptr, WNOHANG);
    } while (reaped > 0);
    if (reaped < 0) return;
    bool any = false;
    for (pid_t child : children_of(getpid())) {
      const auto& foreign = foreign_children_;
      if (std::find(foreign.begin(), foreign.end(), child) != foreign.end()) continue;
      kill(child, SIGKILL);
      any = true;
    }
    if (!any) return;
    poll(nullptr, 0, kReapPollMs);
  }
}

void Supervisor::report() {
  if (!stop_) return;
  std::string& out = stderr_.pending();
  if (!ranks_killed_.empty()) {
    absl::StrAppend(&out, kSpeaker, ranks_killed_.size() == 1 ? "rank " : "ranks ",
                    absl::StrJoin(ranks_killed_, ", "), " did not stop in time and ",
                    ranks_killed_.size() == 1 ? "was" : "were", " killed\n");
  }
  absl::StrAppend(&out, kSpeaker, stop_->reason, "\n");
  if (!stop_->rank) return;
  const Rank& culprit = ranks_[*stop_->rank];
  if (culprit.outputs.empty() || culprit.outputs[1].tail().empty()) return;
  absl::StrAppend(&out, kSpeaker, "last lines of rank ", culprit.rank, " on standard error:\n");
  for (const std::string& line : culprit.outputs[1].tail()) {
    absl::StrAppend(&out, "  [rank ", culprit.rank, "] ", line, "\n");
  }
}

void Supervisor::flush_output() {
  while (!impatient_ && !(stdout_.empty() && stderr_.empty())) wait_for_event(std::nullopt);
}

}  // namespace accelerate::launch
