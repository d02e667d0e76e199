/// Runs a program under mpirun, for tests.
///
/// Errors:  absl::BadStatusOrAccess if no process can be made.
/// Threads: any.
#pragma once

#include <string>

#include "accelerate/platform/child.h"

namespace accelerate::mpi_tests {

/// `command` in a shell.
inline ChildResult run(const std::string& command) { return run_shell(command).value(); }

/// `program` and its arguments as so many ranks of this machine.
ChildResult mpirun(int ranks, const std::string& program);

}  // namespace accelerate::mpi_tests
