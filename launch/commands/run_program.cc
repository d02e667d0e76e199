#include "launch/commands/run_program.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "accelerate/platform/unique_fd.h"
#include "launch/commands/command.h"
#include "launch/process/child_process.h"
#include "launch/process/program.h"

namespace accelerate::launch::commands {

namespace {

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

}  // namespace

absl::StatusOr<int> run_program(const std::vector<std::string>& argv,
                                const std::vector<std::string>& environment) {
  const absl::StatusOr<std::string> program =
      process::find_program(argv[0], process::search_path_of(environment));
  if (!program.ok()) return program.status();
  const process::ExecImage image(*program, argv, environment);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot open a pipe: ", strerror(errno)));
  }
  const UniqueFd report_read(ends[0]);
  UniqueFd report_write(ends[1]);
  const SignalAction interrupt(SIGINT, SIG_IGN);
  const SignalAction quit(SIGQUIT, SIG_IGN);
  // If SIGCHLD is ignored, the exit status of a child is lost.
  const SignalAction child_end(SIGCHLD, SIG_DFL);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return absl::InternalError(absl::StrCat("no new process: ", strerror(errno)));
  if (child == 0) {
    interrupt.restore();
    quit.restore();
    child_end.restore();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(kExitNotFound);
    const int error = image.exec();
    [[maybe_unused]] ssize_t ignored = write(report_write.get(), &error, sizeof(error));
    _exit(kExitNotFound);
  }
  report_write.reset();
  int error = 0;
  ssize_t size;
  do {
    size = read(report_read.get(), &error, sizeof(error));
  } while (size < 0 && errno == EINTR);
  int status = 0;
  pid_t ended;
  do {
    ended = waitpid(child, &status, 0);
  } while (ended < 0 && errno == EINTR);
  if (size > 0) return process::exec_error(image, error);
  if (ended < 0) return absl::InternalError(absl::StrCat("lost the program: ", strerror(errno)));
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace accelerate::launch::commands
