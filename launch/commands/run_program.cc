#include "launch/commands/run_program.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "launch/program.h"

namespace accelerate::launch {
namespace {

constexpr int kCannotStart = 127;

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> result;
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

// Ignores a signal for as long as it lives.
class IgnoredSignal {
 public:
  explicit IgnoredSignal(int number) : number_(number) {
    struct sigaction ignore = {};
    ignore.sa_handler = SIG_IGN;
    sigaction(number_, &ignore, &before_);
  }
  ~IgnoredSignal() { sigaction(number_, &before_, nullptr); }

  void restore() const { sigaction(number_, &before_, nullptr); }

 private:
  const int number_;
  struct sigaction before_ = {};
};

}  // namespace

absl::StatusOr<int> run_program(const std::vector<std::string>& argv,
                                const std::vector<std::string>& environment) {
  const absl::StatusOr<std::string> program = find_program(argv[0], search_path_of(environment));
  if (!program.ok()) return program.status();
  const std::vector<char*> words = pointers(argv);
  const std::vector<char*> variables = pointers(environment);
  const IgnoredSignal interrupt(SIGINT);
  const IgnoredSignal quit(SIGQUIT);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return absl::InternalError(absl::StrCat("no new process: ", strerror(errno)));
  if (child == 0) {
    interrupt.restore();
    quit.restore();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(kCannotStart);
    execve(program->c_str(), words.data(), variables.data());
    _exit(kCannotStart);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace accelerate::launch
