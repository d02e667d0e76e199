#include "launch/process/orphan_guard.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "accelerate/platform/unique_fd.h"

namespace accelerate::launcher::process {
namespace {

// No process group has this number; it tells the guard that the launcher ended normally.
constexpr pid_t kAllIsWell = 0;

// How long to look for processes; one that is stuck in the kernel may take for ever to go.
constexpr std::chrono::seconds kSearchTime(5);
constexpr int kSearchPauseMs = 5;

// Not read with a stream: a process that goes away between open and read is an ordinary outcome
// here, and the stream's buffer throws at it.
std::string read_all(const std::filesystem::path& path) {
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[4096];
  ssize_t size;
  while ((size = read(file.get(), buffer, sizeof(buffer))) > 0) {
    text.append(buffer, static_cast<size_t>(size));
  }
  return text;
}

// Field 4 of /proc/PID/stat. Field 2 is the program's name in parentheses and may hold anything,
// so fields are counted from the last parenthesis.
pid_t parent_of(const std::filesystem::path& process) {
  const std::string stat = read_all(process / "stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return -1;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(stat).substr(name_end + 1), ' ', absl::SkipEmpty());
  pid_t parent = -1;
  if (fields.size() < 2 || !absl::SimpleAtoi(fields[1], &parent)) return -1;
  return parent;
}

// The processes whose folder in /proc fulfils `wanted`.
template <typename Wanted>
std::vector<pid_t> processes_with(const Wanted& wanted) {
  std::vector<pid_t> found;
  std::error_code error;
  std::filesystem::directory_iterator entry("/proc", error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry->path().filename().string(), &pid)) continue;
    if (wanted(entry->path())) found.push_back(pid);
  }
  return found;
}

// Kills what was started with the token in its environment, as far as this user may know. Processes
// may start others while they are looked for: it is over when there are none.
void kill_started_with(const std::string& token) {
  const auto deadline = std::chrono::steady_clock::now() + kSearchTime;
  while (std::chrono::steady_clock::now() < deadline) {
    const std::vector<pid_t> left = processes_with([&token](const std::filesystem::path& process) {
      return absl::StrContains(read_all(process / "environ"), token);
    });
    if (left.empty()) return;
    for (pid_t pid : left) kill(pid, SIGKILL);
    poll(nullptr, 0, kSearchPauseMs);
  }
}

[[noreturn]] void guard(int pipe_fd, const std::string& token) {
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
  kill_started_with(token);
  _exit(0);
}

absl::Status no_resources(const char* what) {
  return absl::ResourceExhaustedError(absl::StrCat("cannot ", what, ": ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<OrphanGuard> OrphanGuard::start() {
  char random[16];
  if (getrandom(random, sizeof(random), 0) != sizeof(random)) return no_resources("make a token");
  std::string token = absl::BytesToHexString(absl::string_view(random, sizeof(random)));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return no_resources("open a pipe");
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  // Forked twice: the process in the middle ends at once, so the guard is not a child of this
  // process.
  const pid_t middle = fork();
  if (middle < 0) return no_resources("start a process");
  if (middle == 0) {
    const pid_t guard_pid = fork();
    if (guard_pid == 0) guard(read_end.get(), token);
    _exit(guard_pid < 0 ? 1 : 0);
  }
  int status = 0;
  waitpid(middle, &status, 0);
  if (status != 0) return absl::ResourceExhaustedError("cannot start a process");
  return OrphanGuard(std::move(write_end), std::move(token));
}

OrphanGuard::~OrphanGuard() {
  if (pipe_.is_open()) watch_group(kAllIsWell);
}

void OrphanGuard::forget_group(pid_t group) const { watch_group(-group); }

void OrphanGuard::watch_group(pid_t group) const {
  // Fails only if the guard itself was killed; then PR_SET_PDEATHSIG is what remains.
  [[maybe_unused]] ssize_t ignored = write(pipe_.get(), &group, sizeof(group));
}

std::vector<pid_t> children_of(pid_t parent) {
  return processes_with(
      [parent](const std::filesystem::path& process) { return parent_of(process) == parent; });
}

}  // namespace accelerate::launcher::process
