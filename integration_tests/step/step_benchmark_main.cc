// Prints the table of accelerate/docs/performance.md about the training step.
#include "accelerate/run.h"
#include "integration_tests/step/benchmark_table.h"

namespace accelerate::step_benchmark {
namespace {

int measure(int /*argc*/, char** /*argv*/) {
  print_header();
  measure_loop();
  measure_optimizers();
  return 0;
}

}  // namespace
}  // namespace accelerate::step_benchmark

int main(int argc, char** argv) {
  return accelerate::run(argc, argv, accelerate::step_benchmark::measure);
}
