/// Ranks as separate processes, for tests: like `accelerate launch`, without supervision.
///
/// Errors: std::system_error.
/// Threads: jobs are started on one thread; several may run at a time.
#pragma once

#include <functional>
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

  /// Runs `program` once per rank, each in a copy of this process, which need not load LibTorch
  /// again: that is most of the time of a short program. The result is the exit code. This process
  /// must have one thread, and is to have made nothing yet that a rank makes for itself.
  ProcessJob(int ranks, const std::function<int()>& program,
             const std::vector<std::pair<std::string, std::string>>& environment = {});

  /// Waits for all of them. To be called once.
  std::vector<ProcessResult> wait();

 private:
  struct Child {
    int pid = -1;
    int output = -1;
  };
  void start_all(int ranks, const std::function<int()>& program,
                 const std::vector<std::pair<std::string, std::string>>& environment);
  static Child start(int rank, int ranks, int listen_fd, const std::function<int()>& program,
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
