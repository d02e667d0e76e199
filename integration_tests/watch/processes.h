/// Ranks as separate processes, for tests: like `accelerate launch`, without supervision.
///
/// Errors: std::system_error.
/// Threads: jobs are started on one thread; several may run at a time.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace accelerate::watch_tests {

struct ProcessResult {
  int exit_code = -1;  ///< -1: a signal ended it
  std::string output;  ///< of both streams
};

/// A job whose processes run.
class ProcessJob {
 public:
  /// Starts `command` (a program and its arguments) once per rank.
  ProcessJob(int ranks, const std::vector<std::string>& command,
             const std::vector<std::pair<std::string, std::string>>& environment = {});

  /// Waits for all of them. To be called once.
  std::vector<ProcessResult> wait();

 private:
  struct Child {
    int pid = -1;
    int output = -1;
  };
  static Child start(int rank, int ranks, int listen_fd, const std::vector<std::string>& command,
                     const std::vector<std::pair<std::string, std::string>>& environment);
  static ProcessResult finish(const Child& child);

  std::vector<Child> children_;
};

/// Starts a job and waits for it.
inline std::vector<ProcessResult> run_processes(
    int ranks, const std::vector<std::string>& command,
    const std::vector<std::pair<std::string, std::string>>& environment = {}) {
  return ProcessJob(ranks, command, environment).wait();
}

}  // namespace accelerate::watch_tests
