/// Runs a program under mpirun, for tests.
///
/// Errors:  std::runtime_error if mpirun cannot be run at all.
/// Threads: any.
#pragma once

#include <string>

namespace accelerate::mpi_tests {

struct Output {
  int exit_code = -1;  ///< mpirun's; -1: a signal ended it
  std::string text;    ///< of both streams
};

/// `command` in a shell.
Output run(const std::string& command);

/// `program` and its arguments as so many ranks of this machine.
Output mpirun(int ranks, const std::string& program);

}  // namespace accelerate::mpi_tests
