/// Runs another program to its end, as a shell does: it has the terminal, its streams are ours.
///
/// Threads: the main thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace accelerate::launch::commands {

/// Its exit code; 128 + N after signal N. While it runs, SIGINT and SIGQUIT are its business alone;
/// it gets SIGTERM when this process dies. `argv[0]` is looked for in PATH.
/// Errors: NotFound and PermissionDenied for a program that cannot be started.
absl::StatusOr<int> run_program(const std::vector<std::string>& argv,
                                const std::vector<std::string>& environment);

}  // namespace accelerate::launch::commands
