#include "launch/orphan_guard.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace accelerate::launch {
namespace {

// No process group has this number; it tells the guard that all is well.
constexpr pid_t kAllIsWell = 0;

[[noreturn]] void guard(int pipe_fd) {
  setsid();
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  prctl(PR_SET_NAME, "accelerate-grd");
  // An open copy of a pipe, a socket or a terminal would keep its other end waiting.
  dup2(pipe_fd, 0);
  close_range(1, ~0U, 0);
  std::vector<pid_t> groups;
  pid_t group;
  while (true) {
    // Writes of this size to a pipe are atomic, so no group arrives in halves.
    const ssize_t size = read(0, &group, sizeof(group));
    if (size < 0 && errno == EINTR) continue;
    if (size != sizeof(group)) break;
    if (group == kAllIsWell) _exit(0);
    if (group > 0) {
      groups.push_back(group);
    } else {
      std::erase(groups, -group);
    }
  }
  for (pid_t left : groups) kill(-left, SIGKILL);
  _exit(0);
}

absl::Status no_resources(const char* what) {
  return absl::ResourceExhaustedError(absl::StrCat("cannot ", what, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<OrphanGuard> OrphanGuard::start() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return no_resources("open a pipe");
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  // Forked twice: the process in the middle ends at once, and the guard is nobody's child here.
  const pid_t middle = fork();
  if (middle < 0) return no_resources("start a process");
  if (middle == 0) {
    const pid_t guard_pid = fork();
    if (guard_pid == 0) guard(read_end.get());
    _exit(guard_pid < 0 ? 1 : 0);
  }
  int status = 0;
  waitpid(middle, &status, 0);
  if (status != 0) return absl::ResourceExhaustedError("cannot start a process");
  return OrphanGuard(std::move(write_end));
}

OrphanGuard::~OrphanGuard() {
  if (pipe_.is_open()) watch_group(kAllIsWell);
}

void OrphanGuard::forget_group(pid_t group) const { watch_group(-group); }

void OrphanGuard::watch_group(pid_t group) const {
  // Fails only if the guard itself was killed; then PR_SET_PDEATHSIG is what remains.
  [[maybe_unused]] ssize_t ignored = write(pipe_.get(), &group, sizeof(group));
}

}  // namespace accelerate::launch
