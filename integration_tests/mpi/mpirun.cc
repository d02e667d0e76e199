#include "integration_tests/mpi/mpirun.h"

namespace accelerate::mpi_tests {

ChildResult mpirun(int ranks, const std::string& program) {
  return run("mpirun --allow-run-as-root --oversubscribe -n " + std::to_string(ranks) + " " +
             program);
}

}  // namespace accelerate::mpi_tests
