#include "launch/supervise/rank_group.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/log/absl_check.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"
#include "accelerate/platform/unique_fd.h"
#include "launch/process/process_plan.h"
#include "launch/process/terminal_colour.h"

namespace accelerate::launcher::supervise {
namespace {

// Lending the terminal to a rank that runs alone.
//
// A rank is a process group of its own, and only the terminal's foreground group may read from it
// and gets its Ctrl-C. A single rank that shares the launcher's terminal is therefore made the
// foreground group, as a shell does with a job.
//
// The terminal is the one on standard input. SIGTTOU must be blocked when it changes hands.
bool owns_terminal() { return tcgetpgrp(STDIN_FILENO) == getpgrp(); }

void take_terminal_back(pid_t group) {
  if (tcgetpgrp(STDIN_FILENO) == group) tcsetpgrp(STDIN_FILENO, getpgrp());
}

// How long the error of one rank waits for those of others.
constexpr std::chrono::seconds kFailureWait(1);

// How a program's error begins (accelerate::run).
std::string failure_beginning(int rank) {
  return absl::StrCat("accelerate: rank ", rank, " failed: ");
}

// How long to drain pipes after the last rank ended; its own children may still hold them.
constexpr std::chrono::milliseconds kDrainGrace(500);

// How long to wait for killed ranks; one that is stuck in the kernel may never end.
constexpr std::chrono::seconds kKillTimeout(5);
constexpr int kReapPauseMs = 5;

// Besides the ranks' pipes and logs: standard streams, guard, signals, sockets of this machine and
// of the others, and pipes during a spawn.
constexpr rlim_t kOtherFiles = 256;

// Makes room for two pipes and two logs of each rank. Returns the limit of before, which the ranks
// get back.
absl::StatusOr<rlimit> raise_open_files(size_t num_ranks) {
  rlimit original = {};
  getrlimit(RLIMIT_NOFILE, &original);
  const rlim_t needed = 4 * num_ranks + kOtherFiles;
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

RankGroup::~RankGroup() { end(); }

absl::Status RankGroup::start(const std::string& program, absl::Span<const RankStart> ranks,
                              absl::Span<const std::string> parent_environment, bool own_streams) {
  ABSL_CHECK(members_.empty() && !ranks.empty());
  ACCELERATE_ASSIGN_OR_RETURN(rlimit open_files, raise_open_files(ranks.size()));
  UniqueFd null_fd(own_streams ? -1 : open("/dev/null", O_RDONLY | O_CLOEXEC));
  lent_terminal_ = own_streams && owns_terminal();
  members_.reserve(ranks.size());
  for (const RankStart& rank : ranks) {
    ACCELERATE_RETURN_IF_ERROR(
        in_file(absl::StrCat("cannot start rank ", rank.rank),
                start_one(program, rank, parent_environment, null_fd.get(), open_files)));
  }
  return absl::OkStatus();
}

absl::Status RankGroup::start_one(const std::string& program, const RankStart& start,
                                  absl::Span<const std::string> parent_environment, int null_fd,
                                  const rlimit& open_files) {
  process::EnvironmentOverlay environment = start.plan.environment;
  // A run that a rank of another run started is known by the tokens of both.
  const std::string outer =
      process::environment_value(parent_environment, process::kRunTokenVariable);
  environment[process::kRunTokenVariable] =
      absl::StrCat(outer, outer.empty() ? "" : ":", guard_->token());
  process::ExecImage image(program, start.plan.argv,
                           process::apply_overlay(parent_environment, environment));
  process::ChildSetup setup = {.stdin_fd = null_fd,
                               .inherited_fds = start.plan.inherited_fds,
                               .takes_terminal = lent_terminal_,
                               .open_files = open_files};
  Member member = {.rank = start.rank, .local_rank = start.local_rank};
  UniqueFd out, err;
  if (null_fd >= 0) {
    ACCELERATE_ASSIGN_OR_RETURN(out, open_output(member, start.out, console_->out()));
    ACCELERATE_ASSIGN_OR_RETURN(err, open_output(member, start.err, console_->err()));
    member.outputs[1].buffer_from(failure_beginning(start.rank));
    setup.stdout_fd = out.get();
    setup.stderr_fd = err.get();
  }
  ACCELERATE_ASSIGN_OR_RETURN(member.pid, process::spawn(image, setup, *signals_, *guard_));
  members_.push_back(std::move(member));
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> RankGroup::open_output(Member& member, const StreamTarget& target,
                                                OutputQueue& queue) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot open a pipe: ", std::strerror(errno)));
  }
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  // Only this end: the writing end is the rank's, which expects writes to wait.
  fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  UniqueFd log;
  if (!target.log_path.empty()) {
    absl::StatusOr<UniqueFd> opened = open_log(target.log_path);
    if (opened.ok()) {
      log = *std::move(opened);
    } else if (absl::IsDataLoss(opened.status())) {
      console_->print_once("logs",
                           absl::StrCat(opened.status().message(), "; the run goes on without"));
    } else {
      return opened.status();
    }
  }
  std::string log_path = log.is_open() ? target.log_path : "";
  member.outputs.emplace_back(
      std::move(read_end), process::rank_prefix(member.rank, queue.has_colour()),
      target.console ? &queue : nullptr, std::move(log), std::move(log_path), *console_);
  return write_end;
}

void RankGroup::observe(pid_t first) {
  // Several exits merge into one signal, which then names the first of them.
  for (Member& member : members_) {
    if (member.pid == first) observe_one(member);
  }
  for (Member& member : members_) observe_one(member);
}

void RankGroup::observe_one(Member& member) {
  if (member.exit || member.pid == 0) return;
  siginfo_t info = {};
  if (lent_terminal_ && waitid(P_PID, member.pid, &info, WSTOPPED | WNOHANG) == 0 &&
      info.si_pid == member.pid) {
    // Ctrl-Z reached only the rank, whose group is in the foreground: follow it, as one job.
    take_terminal_back(member.pid);
    process::SignalInbox::suspend(0);
    if (owns_terminal()) tcsetpgrp(STDIN_FILENO, member.pid);
    kill(-member.pid, SIGCONT);
  }
  info = {};
  if (waitid(P_PID, member.pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
    return;
  }
  member.exit = {.rank = member.rank, .local_rank = member.local_rank, .pid = member.pid};
  (info.si_code == CLD_EXITED ? member.exit->code : member.exit->signal) = info.si_status;
  if (lent_terminal_) {
    take_terminal_back(member.pid);
    // Ctrl-C reached only the rank; one that caught it exits with its number.
    const int signal = member.exit->exit_code() - 128;
    if (signal == SIGINT || signal == SIGQUIT) interruption_ = signal;
  }
  if (!stopping_ && !first_failure_ && !interruption_ && member.exit->failed())
    first_failure_ = member.exit;
}

bool RankGroup::has_member(pid_t pid) const {
  return std::ranges::any_of(members_, [pid](const Member& member) { return member.pid == pid; });
}

bool RankGroup::all_exited() const {
  return std::ranges::all_of(members_,
                             [](const Member& member) { return member.exit.has_value(); });
}

bool RankGroup::is_over() {
  const bool is_given_up = give_up_at_ && Clock::now() >= *give_up_at_;
  if (!all_exited() && !is_given_up) return false;
  if (!drain_deadline_) drain_deadline_ = Clock::now() + kDrainGrace;
  const bool all_closed = std::ranges::all_of(members_, [](const Member& member) {
    return std::ranges::none_of(member.outputs,
                                [](const RankOutput& output) { return output.is_open(); });
  });
  return all_closed || stops_waiting_ || Clock::now() >= *drain_deadline_;
}

void RankGroup::send(int signal) const {
  for (const Member& member : members_) {
    if (member.pid != 0) kill(-member.pid, signal);
  }
}

void RankGroup::stop(int signal, absl::Duration grace) {
  if (stopping_) return;
  stopping_ = true;
  stopped_any_ = !all_exited();
  send(signal);
  // A suspended process would not notice before it is killed.
  send(SIGCONT);
  kill_deadline_ = Clock::now() + absl::ToChronoMilliseconds(grace);
}

void RankGroup::kill_now() {
  kill_deadline_.reset();
  give_up_at_ = Clock::now() + kKillTimeout;
  for (const Member& member : members_) {
    if (!member.exit) killed_.push_back(member.rank);
  }
  send(SIGKILL);
}

void RankGroup::end() {
  stopping_ = ended_ = true;
  kill_deadline_.reset();
  send(SIGKILL);
  if (!give_up_at_) give_up_at_ = Clock::now() + kKillTimeout;
  for (Member& member : members_) {
    if (member.pid == 0) continue;
    if (!reap(member.pid)) {
      console_->print(absl::StrCat("rank ", member.rank, " (pid ", member.pid,
                                   ") does not die and was left behind"));
    }
    guard_->forget_group(member.pid);
    if (lent_terminal_) take_terminal_back(member.pid);
    member.pid = 0;
    if (!member.exit) member.exit = RankExit{.rank = member.rank, .signal = SIGKILL};
    for (RankOutput& output : member.outputs) output.finish();
  }
  show_failures();
}

bool RankGroup::reap(pid_t pid) const {
  while (waitpid(pid, nullptr, WNOHANG) == 0) {
    if (Clock::now() >= *give_up_at_) return false;
    poll(nullptr, 0, kReapPauseMs);
  }
  return true;
}

const RankGroup::Member* RankGroup::find(int rank) const {
  for (const Member& member : members_) {
    if (member.rank == rank) return &member;
  }
  return nullptr;
}

std::vector<std::string> RankGroup::tail(int rank) const {
  const Member* member = find(rank);
  if (member == nullptr || member->outputs.empty()) return {};
  return {member->outputs[1].tail().begin(), member->outputs[1].tail().end()};
}

std::string RankGroup::log_path(int rank) const {
  const Member* member = find(rank);
  if (member == nullptr || member->outputs.empty()) return "";
  return member->outputs[1].log_path();
}

void RankGroup::add_entries(std::vector<pollfd>& entries) {
  readers_.clear();
  for (Member& member : members_) {
    for (RankOutput& output : member.outputs) {
      if (!output.wants_data()) continue;
      readers_.push_back(&output);
      entries.push_back({.fd = output.fd(), .events = POLLIN, .revents = 0});
    }
  }
}

void RankGroup::react(absl::Span<const pollfd> entries) {
  for (size_t i = 0; i < readers_.size(); ++i) {
    if (entries[i].revents != 0 && readers_[i]->wants_data()) readers_[i]->read_some();
  }
  if (kill_deadline_ && Clock::now() >= *kill_deadline_) kill_now();
  if (!show_at_ && holds_failures()) show_at_ = Clock::now() + kFailureWait;
  if (show_at_ && Clock::now() >= *show_at_) show_failures();
}

bool RankGroup::holds_failures() const {
  return std::ranges::any_of(members_, [](const Member& member) {
    return !member.outputs.empty() && member.outputs[1].holds();
  });
}

void RankGroup::show_failures() {
  show_at_.reset();
  std::map<int, std::vector<int>> alike;  // by the rank whose error was shown
  for (Member& member : members_) {
    if (member.outputs.empty() || !member.outputs[1].holds()) continue;
    const std::vector<std::string> lines = member.outputs[1].release();
    std::string text = absl::StrJoin(lines, "").substr(failure_beginning(member.rank).size());
    const auto [first, is_new] = shown_.emplace(std::move(text), member.rank);
    member.has_shown_failure = true;
    if (!is_new) {
      alike[first->second].push_back(member.rank);
      continue;
    }
    const std::string prefix = process::rank_prefix(member.rank, console_->err().has_colour());
    for (const std::string& line : lines) {
      absl::StrAppend(&console_->err().pending(), prefix, line);
    }
  }
  for (const auto& [rank, others] : alike) {
    absl::StrAppend(&console_->err().pending(),
                    process::rank_prefix(rank, console_->err().has_colour()),
                    "also failed: ", rank_list(others), "\n");
  }
}

bool RankGroup::has_shown_failure(int rank) const {
  const Member* member = find(rank);
  return member != nullptr && member->has_shown_failure;
}

std::optional<process::EventSource::Clock::time_point> RankGroup::deadline() const {
  const Clock::time_point now = Clock::now();
  std::optional<Clock::time_point> next = kill_deadline_;
  for (const std::optional<Clock::time_point>& time : {give_up_at_, drain_deadline_, show_at_}) {
    // A time that passed is nothing to wait for.
    if (time && now < *time) next = process::earlier(next, time);
  }
  return next;
}

std::string describe(const RankExit& exit) {
  std::string who = absl::StrCat("rank ", exit.rank, " (pid ", exit.pid, ", local rank ",
                                 exit.local_rank, " on ", host_name(), ")");
  if (exit.signal != 0) return absl::StrCat(who, " was killed by ", describe_signal(exit.signal));
  return absl::StrCat(who, " exited with code ", exit.code);
}

std::string describe_signal(int signal) {
  return absl::StrCat("signal ", signal, " (", strsignal(signal), ")");
}

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "this machine";
  return name;
}

}  // namespace accelerate::launcher::supervise
