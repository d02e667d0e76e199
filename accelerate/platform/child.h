/// Short-lived child processes whose output is collected: a command, a line of shell, a question
/// that may crash or hang the process that asks it. If there is much output, its beginning and its
/// end are kept. A process that the child leaves behind is not waited for, although it may hold the
/// output open.
///
/// The child reads nothing (/dev/null). Processes that are supervised, talked to or given a
/// terminal are started elsewhere (launch/process, trackers/bridge).
/// Errors: ResourceExhausted if no process or pipe could be made.
/// Threads: any for commands; `run_in_child` only while the process has one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace accelerate {

struct ChildResult {
  /// As a shell has it: 128 + N after signal N, 127 for a program that is not there, 126 for one
  /// that cannot be executed.
  int exit_code = 0;
  int signal = 0;          ///< the signal that ended it, or 0
  bool timed_out = false;  ///< it was killed at the limit
  /// At most kMostOutput bytes, and a line in their middle that tells how many were left out.
  std::string output;
  int64_t left_out = 0;  ///< bytes
};

/// What is kept of an output. A half of it is the beginning, the other one the end.
inline constexpr size_t kMostOutput = size_t{8} << 20;

struct CommandOptions {
  /// Whether standard error is collected too, in the order of writing; it is discarded otherwise.
  bool collects_errors = true;
  /// When the child is killed.
  absl::Duration limit = absl::InfiniteDuration();
};

/// Runs a program with its arguments. `argv[0]` is looked up in PATH.
absl::StatusOr<ChildResult> run_command(const std::vector<std::string>& argv,
                                        const CommandOptions& options = {});

/// Runs a line of /bin/sh.
absl::StatusOr<ChildResult> run_shell(const std::string& line, const CommandOptions& options = {});

/// Calls `body` in a child and collects what it writes to the descriptor that it gets. The child's
/// standard streams are /dev/null; it exits with 1 when `body` returns, without cleaning up.
absl::StatusOr<ChildResult> run_in_child(const std::function<void(int fd)>& body,
                                         absl::Duration limit = absl::InfiniteDuration());

/// The words as exec() and posix_spawn() take them: pointers into `words`, with a null behind them.
std::vector<char*> pointers_to(std::vector<std::string>& words);

/// Writes all of `text` unless an error stops it; false then. Async-signal-safe.
bool write_all(int fd, absl::string_view text);

}  // namespace accelerate
