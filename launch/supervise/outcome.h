/// How a rank ended, as a message and as the launcher's exit code.
#pragma once

#include <sys/types.h>

#include <string>

namespace accelerate::launch::supervise {

/// How a process ended: by its own exit, or by a signal.
struct RankExit {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = 0;
  /// Exit code, or 0 if a signal ended it.
  int code = 0;
  /// Signal that ended it, or 0.
  int signal = 0;

  bool failed() const { return code != 0 || signal != 0; }

  /// The shell's convention: the exit code, or 128 + signal.
  int exit_code() const { return signal != 0 ? 128 + signal : code; }
};

/// `rank 5 (pid 1234, local rank 1 on HOST) exited with code 3`, or `… was killed by signal 9
/// (Killed)`.
std::string describe(const RankExit& exit);

/// `signal 15 (Terminated)`.
std::string describe_signal(int signal);

/// This machine's host name, for messages.
std::string host_name();

}  // namespace accelerate::launch::supervise
