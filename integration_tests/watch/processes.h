/// Ranks as separate processes, for tests: like `accelerate launch`, without supervision.
///
/// Errors: std::system_error.
/// Threads: one job at a time.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace accelerate::watch_tests {

struct ProcessResult {
  int exit_code = -1;  ///< -1: a signal ended it
  std::string output;  ///< of both streams
};

/// Runs `command` (a program and its arguments) once per rank, and waits for all of them.
std::vector<ProcessResult> run_processes(
    int ranks, const std::vector<std::string>& command,
    const std::vector<std::pair<std::string, std::string>>& environment = {});

}  // namespace accelerate::watch_tests
