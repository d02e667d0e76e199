#include "launch/process/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "accelerate/platform/child.h"
#include "accelerate/platform/unique_fd.h"
#include "launch/process/process_plan.h"

namespace accelerate::launcher::process {
namespace {

constexpr char kShell[] = "/bin/sh";

void replace_fd(int from, int to) {
  if (from >= 0) dup2(from, to);
}

// Starts the program in a child, and returns once it runs. `arrange` is called between fork and
// exec: system calls only.
template <typename Arrange>
absl::StatusOr<pid_t> start(const ExecImage& image, const Arrange& arrange) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot open a pipe: ", std::strerror(errno)));
  }
  const UniqueFd report_read(ends[0]);
  UniqueFd report_write(ends[1]);
  const pid_t pid = fork();
  if (pid < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a process: ", std::strerror(errno)));
  }
  int error = 0;
  if (pid == 0) {
    arrange();
    error = image.exec();
    [[maybe_unused]] ssize_t ignored = write(report_write.get(), &error, sizeof(error));
    _exit(127);
  }
  report_write.reset();
  ssize_t size;
  do {
    size = read(report_read.get(), &error, sizeof(error));
  } while (size < 0 && errno == EINTR);
  if (size == 0) return pid;  // exec closed the pipe
  waitpid(pid, nullptr, 0);
  return exec_error(image, error);
}

// Handles a signal in another way for as long as it lives.
class SignalAction {
 public:
  SignalAction(int number, void (*handler)(int)) : number_(number) {
    struct sigaction action = {};
    action.sa_handler = handler;
    sigaction(number_, &action, &before_);
  }
  ~SignalAction() { restore(); }
  SignalAction(const SignalAction&) = delete;
  SignalAction& operator=(const SignalAction&) = delete;

  void restore() const { sigaction(number_, &before_, nullptr); }

 private:
  const int number_;
  struct sigaction before_ = {};
};

absl::Status check_executable(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return absl::NotFoundError(absl::StrCat("program ", path, " not found"));
    }
    return absl::PermissionDeniedError(
        absl::StrCat("program ", path, " cannot be executed: ", std::strerror(errno)));
  }
  if (S_ISDIR(info.st_mode)) {
    return absl::PermissionDeniedError(absl::StrCat("program ", path, " is a directory"));
  }
  if (access(path.c_str(), X_OK) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("program ", path, " is not executable"));
  }
  return absl::OkStatus();
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
  const pid_t launcher = getpid();
  return start(image, [&] {
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
  });
}

absl::StatusOr<int> run_program(const std::vector<std::string>& argv,
                                const std::vector<std::string>& environment) {
  const absl::StatusOr<std::string> program = find_program(argv[0], search_path_of(environment));
  if (!program.ok()) return program.status();
  const SignalAction interrupt(SIGINT, SIG_IGN);
  const SignalAction quit(SIGQUIT, SIG_IGN);
  // If SIGCHLD is ignored, the exit status of a child is lost.
  const SignalAction child_end(SIGCHLD, SIG_DFL);
  const pid_t parent = getpid();
  const absl::StatusOr<pid_t> child = start(ExecImage(*program, argv, environment), [&] {
    for (const SignalAction* action : {&interrupt, &quit, &child_end}) action->restore();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127);
  });
  if (!child.ok()) return child.status();
  int status = 0;
  pid_t ended;
  do {
    ended = waitpid(*child, &status, 0);
  } while (ended < 0 && errno == EINTR);
  if (ended < 0) {
    return absl::InternalError(absl::StrCat("lost the program: ", std::strerror(errno)));
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
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

std::string search_path_of(absl::Span<const std::string> environment) {
  return find_in_environment(environment, "PATH").value_or("/bin:/usr/bin");
}

absl::StatusOr<std::string> find_program(absl::string_view name, absl::string_view search_path) {
  if (absl::StrContains(name, '/')) {
    std::string path(name);
    if (absl::Status ok = check_executable(path); !ok.ok()) return ok;
    return path;
  }
  absl::Status refused;
  for (absl::string_view directory : absl::StrSplit(search_path, ':')) {
    std::string path = absl::StrCat(directory.empty() ? "." : directory, "/", name);
    absl::Status ok = check_executable(path);
    if (ok.ok()) return path;
    // As in a shell, a later directory may still have one that works.
    if (absl::IsPermissionDenied(ok) && refused.ok()) refused = ok;
  }
  if (!refused.ok()) return refused;
  return absl::NotFoundError(absl::StrCat("program ", name, " not found in PATH"));
}

}  // namespace accelerate::launcher::process
