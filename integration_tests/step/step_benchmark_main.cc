// Prints the table of accelerate/docs/performance_log.md about the training step, or with an
// argument, as `step_benchmark loop`, its rows about the loop alone.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "accelerate/process/run.h"
#include "integration_tests/step/benchmark_table.h"
#include "integration_tests/watch/processes.h"

namespace accelerate::step_benchmark {
namespace {

int measure_alone(int argc, char** /*argv*/) {
  print_header();
  measure_loop();
  if (argc == 1) measure_optimizers();
  return 0;
}

int measure_together(int /*argc*/, char** /*argv*/) {
  measure_data_parallel();
  return 0;
}

int measure_all(int argc, char** argv) {
  // The two processes are this program once more.
  if (std::getenv("RANK") != nullptr) return run(argc, argv, measure_together);
  if (const int code = run(argc, argv, measure_alone); code != 0 || argc > 1) return code;
  const std::vector<std::string> command(argv, argv + argc);
  for (const auto& result : watch_tests::run_processes(
           2, command, {{"OMP_NUM_THREADS", "1"}, {"OPENBLAS_NUM_THREADS", "1"}})) {
    std::fputs(result.output.c_str(), stdout);
    if (result.exit_code != 0) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace accelerate::step_benchmark

int main(int argc, char** argv) { return accelerate::step_benchmark::measure_all(argc, argv); }
