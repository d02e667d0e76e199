#include "integration_tests/step/benchmark_table.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>

namespace accelerate::step_benchmark {

void print_header() {
  std::puts("| measured | alone, us | here, us | result | wanted | HF Accelerate |");
  std::puts("| --- | ---: | ---: | --- | --- | --- |");
}

void print(const Row& row) {
  std::printf("| %s | %.1f | %.1f | %s | %s | %s |\n", row.measured.c_str(), row.alone, row.here,
              row.result.c_str(), row.wanted.c_str(), row.peer.c_str());
  std::fflush(stdout);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace accelerate::step_benchmark
