#include "integration_tests/mpi/mpirun.h"

#include <array>
#include <cstdio>
#include <stdexcept>

#include <sys/wait.h>

namespace accelerate::mpi_tests {

Output run(const std::string& command) {
  std::FILE* pipe = popen(("exec 2>&1; " + command).c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  Output output;
  std::array<char, 4096> chunk;
  while (size_t n = fread(chunk.data(), 1, chunk.size(), pipe)) output.text.append(chunk.data(), n);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) output.exit_code = WEXITSTATUS(status);
  return output;
}

Output mpirun(int ranks, const std::string& program) {
  return run("mpirun --allow-run-as-root --oversubscribe -n " + std::to_string(ranks) + " " +
             program);
}

}  // namespace accelerate::mpi_tests
