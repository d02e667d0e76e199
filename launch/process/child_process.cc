#include "launch/process/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "accelerate/platform/unique_fd.h"

namespace accelerate::launch::process {
namespace {

constexpr char kShell[] = "/bin/sh";

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// The rest of this namespace runs between fork and exec: system calls only.

void replace_fd(int from, int to) {
  if (from >= 0) dup2(from, to);
}

[[noreturn]] void become(const ExecImage& image, const ChildSetup& setup,
                         const SignalInbox& signals, const OrphanGuard& guard, pid_t launcher,
                         int report_fd) {
  setpgid(0, 0);
  guard.watch_group(getpid());
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The launcher may have died before the line above; then nothing will ever kill this process.
  if (getppid() != launcher) _exit(127);
  // SIGTTOU is still blocked, so a process in the background may do this.
  if (setup.takes_terminal) tcsetpgrp(STDIN_FILENO, getpid());
  replace_fd(setup.stdin_fd, STDIN_FILENO);
  replace_fd(setup.stdout_fd, STDOUT_FILENO);
  replace_fd(setup.stderr_fd, STDERR_FILENO);
  for (int fd : setup.inherited_fds) fcntl(fd, F_SETFD, 0);
  setrlimit(RLIMIT_NOFILE, &setup.open_files);
  signals.restore();
  const int error = image.exec();
  [[maybe_unused]] ssize_t ignored = write(report_fd, &error, sizeof(error));
  _exit(127);
}

}  // namespace

ExecImage::ExecImage(std::string path, std::vector<std::string> argv,
                     std::vector<std::string> environment)
    : path_(std::move(path)), argv_(std::move(argv)), environment_(std::move(environment)) {
  argv_pointers_ = pointers_to(argv_);
  environment_pointers_ = pointers_to(environment_);
  shell_argv_pointers_ = {const_cast<char*>(kShell), path_.data()};
  shell_argv_pointers_.insert(shell_argv_pointers_.end(), argv_pointers_.begin() + 1,
                              argv_pointers_.end());
}

int ExecImage::exec() const {
  execve(path_.c_str(), argv_pointers_.data(), environment_pointers_.data());
  if (errno == ENOEXEC) execve(kShell, shell_argv_pointers_.data(), environment_pointers_.data());
  return errno;
}

absl::StatusOr<pid_t> spawn(const ExecImage& image, const ChildSetup& setup,
                            const SignalInbox& signals, const OrphanGuard& guard) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot open a pipe: ", std::strerror(errno)));
  }
  UniqueFd report_read(ends[0]);
  UniqueFd report_write(ends[1]);
  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid == 0) become(image, setup, signals, guard, launcher, report_write.get());
  if (pid < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a process: ", std::strerror(errno)));
  }
  // Parent and child both do it, so that the group exists no matter which of them runs first.
  setpgid(pid, pid);
  report_write.reset();
  int error = 0;
  ssize_t size;
  do {
    size = read(report_read.get(), &error, sizeof(error));
  } while (size < 0 && errno == EINTR);
  if (size == 0) return pid;  // exec closed the pipe
  waitpid(pid, nullptr, 0);
  return exec_error(image, error);
}

absl::Status exec_error(const ExecImage& image, int error) {
  std::string text =
      absl::StrCat("program ", image.path(), " cannot be executed: ", std::strerror(error));
  if (error == ENOENT) {
    return absl::NotFoundError(
        absl::StrCat(text, " (is the interpreter in its first line there?)"));
  }
  return absl::PermissionDeniedError(text);
}

}  // namespace accelerate::launch::process
