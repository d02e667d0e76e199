#include "launch/supervise/supervisor.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "accelerate/base/status.h"
#include "launch/process/orphan_guard.h"

namespace accelerate::launcher::supervise {
namespace {

// How long to wait for killed processes to go; one that is stuck in the kernel may take for ever.
constexpr std::chrono::seconds kReapGrace(2);
constexpr int kReapPollMs = 20;

// In the usual case there is no child, and /proc need not be searched.
bool has_children() {
  siginfo_t info = {};
  return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Supervisor>> Supervisor::create(const SupervisorOptions& options) {
  ACCELERATE_ASSIGN_OR_RETURN(process::OrphanGuard guard, process::OrphanGuard::start());
  return std::unique_ptr<Supervisor>(new Supervisor(std::move(guard), options));
}

Supervisor::Supervisor(process::OrphanGuard guard, const SupervisorOptions& options)
    : options_(options),
      guard_(std::move(guard)),
      foreign_children_(has_children() ? process::children_of(getpid()) : std::vector<pid_t>()) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Supervisor::~Supervisor() { end_ranks(); }

absl::Status Supervisor::start_ranks(const std::string& program, absl::Span<const RankStart> ranks,
                                     absl::Span<const std::string> parent_environment,
                                     bool own_streams) {
  ranks_ = std::make_unique<RankGroup>(guard_, signals_, console_);
  return ranks_->start(program, ranks, parent_environment, own_streams);
}

void Supervisor::stop_ranks() {
  if (ranks_) ranks_->stop(SIGTERM, options_.failure_grace);
}

void Supervisor::end_ranks() {
  if (!ranks_) return;
  ranks_->end();
  kill_adopted();
}

void Supervisor::add_entries(std::vector<pollfd>& entries) {
  entries.push_back({.fd = signals_.fd(), .events = POLLIN, .revents = 0});
  console_.add_entries(entries);
  console_entries_ = 2;
  if (ranks_) ranks_->add_entries(entries);
}

void Supervisor::react(absl::Span<const pollfd> entries) {
  // Signals first: the first exit decides which rank is reported as the failure.
  if (entries[0].revents != 0) handle_signals();
  console_.react(entries.subspan(1, console_entries_));
  if (console_.closed()) {
    request_stop(
        {.reason = absl::StrCat(*console_.closed(), " was closed"), .exit_code = 128 + SIGPIPE},
        SIGTERM, options_.failure_grace);
  }
  if (ranks_) ranks_->react(entries.subspan(1 + console_entries_));
  // After the first failure all ranks are stopped.
  if (ranks_ && ranks_->first_failure()) stop_ranks();
}

std::optional<process::EventSource::Clock::time_point> Supervisor::deadline() const {
  return ranks_ ? ranks_->deadline() : std::nullopt;
}

void Supervisor::handle_signals() {
  while (std::optional<signalfd_siginfo> info = signals_.next()) {
    const int signal = static_cast<int>(info->ssi_signo);
    switch (signal) {
      case SIGCHLD:
        if (ranks_) observe_ranks(static_cast<pid_t>(info->ssi_pid));
        reap_adopted();
        break;
      case SIGINT:
      case SIGTERM:
      case SIGHUP:
      case SIGQUIT: handle_stop_request(signal); break;
      case SIGTSTP: suspend(); break;
      default:
        if (ranks_) ranks_->send(signal);
    }
  }
}

void Supervisor::observe_ranks(pid_t first) {
  ranks_->observe(first);
  if (const std::optional<int> signal = ranks_->interruption()) {
    request_stop(
        {.reason = absl::StrCat("received ", describe_signal(*signal)), .exit_code = 128 + *signal},
        *signal, options_.signal_grace);
  }
}

void Supervisor::handle_stop_request(int signal) {
  const bool none_runs = !ranks_ || ranks_->all_exited();
  const bool stopping = stop_request_ || (ranks_ && ranks_->is_stopping());
  if (stopping && !stops_waiting_) {
    console_.print(absl::StrCat("received ", describe_signal(signal), " while stopping; ",
                                none_runs ? "no longer waiting" : "killing the ranks"));
    stops_waiting_ = true;
  }
  if (ranks_ && (stopping || none_runs)) ranks_->stop_waiting();
  if (stopping && !none_runs) ranks_->kill_now();
  // In a rank that does not begin with accelerate::run, SIGHUP may belong to the debugger of UCX,
  // which Open MPI brings along.
  request_stop(
      {.reason = absl::StrCat("received ", describe_signal(signal)), .exit_code = 128 + signal},
      signal == SIGHUP ? SIGTERM : signal, options_.signal_grace);
}

void Supervisor::request_stop(StopRequest request, int signal, absl::Duration grace) {
  if (stop_request_) return;
  stop_request_ = std::move(request);
  if (ranks_) ranks_->stop(signal, grace);
}

void Supervisor::suspend() {
  if (ranks_) ranks_->send(SIGTSTP);
  process::SignalInbox::suspend(getpid());
  if (ranks_) ranks_->send(SIGCONT);
}

void Supervisor::reap_adopted() {
  siginfo_t info = {};
  while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
    // A rank that ended hides what is behind it from this call; the end of the round reaps the
    // rest.
    if (ranks_ && ranks_->has_member(info.si_pid)) return;
    waitpid(info.si_pid, nullptr, WNOHANG);
    info = {};
  }
}

// A process that left its rank's group became a child of this process when its parent went.
void Supervisor::kill_adopted() {
  const Clock::time_point deadline = Clock::now() + kReapGrace;
  while (Clock::now() < deadline) {
    pid_t reaped;
    do {
      reaped = waitpid(-1, nullptr, WNOHANG);
    } while (reaped > 0);
    if (reaped < 0) return;
    bool any = false;
    for (pid_t child : process::children_of(getpid())) {
      const auto& foreign = foreign_children_;
      if (std::ranges::find(foreign, child) != foreign.end()) continue;
      kill(child, SIGKILL);
      any = true;
    }
    if (!any) return;
    poll(nullptr, 0, kReapPollMs);
  }
}

}  // namespace accelerate::launcher::supervise
