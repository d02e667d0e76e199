/// Finding a program, and starting it: fork, arrange the child, exec.
///
/// Between fork and exec a child may not allocate, so everything it needs is prepared before.
/// Threads: fork from the main thread only; a child is tied to the life of the thread that forked
///          it (PR_SET_PDEATHSIG).
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "launch/process/orphan_guard.h"
#include "launch/process/signal_inbox.h"

namespace accelerate::launcher::process {

/// A program with its arguments and environment, laid out for exec.
class ExecImage {
 public:
  /// `path` is what is executed; `argv[0]` is what the program is told.
  ExecImage(std::string path, std::vector<std::string> argv, std::vector<std::string> environment);
  ExecImage(const ExecImage&) = delete;
  ExecImage& operator=(const ExecImage&) = delete;

  /// Replaces the calling process; returns errno if that failed. Like execvp, hands a file without
  /// a known format to /bin/sh. Async-signal-safe.
  int exec() const;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::vector<std::string> argv_;
  std::vector<std::string> environment_;
  std::vector<char*> argv_pointers_;
  std::vector<char*> shell_argv_pointers_;
  std::vector<char*> environment_pointers_;
};

/// The differences between the child and the launcher. Descriptors above 2, or -1 to inherit.
struct ChildSetup {
  int stdin_fd = -1;
  int stdout_fd = -1;
  int stderr_fd = -1;
  /// Descriptors that survive the exec under their own numbers.
  std::vector<int> inherited_fds;
  /// The child becomes the foreground process group of the launcher's terminal, standard input.
  bool takes_terminal = false;
  /// The limit on open files that the child gets back.
  rlimit open_files = {};
};

/// Starts the program as the leader of a new process group, which is killed if the launcher dies.
/// Returns once the program runs.
/// Errors: NotFound or PermissionDenied as exec reported it; ResourceExhausted if there was no
///         process or descriptor to be had.
absl::StatusOr<pid_t> spawn(const ExecImage& image, const ChildSetup& setup,
                            const SignalInbox& signals, const OrphanGuard& guard);

/// Runs a program to its end, as a shell does: it has the terminal, its streams are ours. Returns
/// its exit code; 128 + N after signal N. While it runs, SIGINT and SIGQUIT are its business alone;
/// it gets SIGTERM when this process dies. `argv[0]` is looked for in PATH. Errors: as
/// `find_program` and `spawn`.
absl::StatusOr<int> run_program(const std::vector<std::string>& argv,
                                const std::vector<std::string>& environment);

/// The status of an `exec` of `image` that returned `error`: NotFound or PermissionDenied.
absl::Status exec_error(const ExecImage& image, int error);

/// PATH of an environment of `NAME=value` words; what execvp takes where there is none.
std::string search_path_of(absl::Span<const std::string> environment);

/// The file that `name` stands for: itself if it has a slash, else the first executable file of
/// that name in the directories of `search_path` (colon separated, an empty one is the current
/// directory). Same rules as execvp, but the reason of a failure is kept.
/// Errors: NotFound if there is no such file; PermissionDenied if there is one that cannot be
///         executed.
absl::StatusOr<std::string> find_program(absl::string_view name, absl::string_view search_path);

}  // namespace accelerate::launcher::process
