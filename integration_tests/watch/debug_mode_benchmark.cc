// The cost of debug mode on the digits with two Gloo processes:
//
//   debug_mode_benchmark [RUNS [STEPS]]
//
// runs the training with debug mode off and on in turn, and prints the median step of each.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/accelerate.h"
#include "accelerate/examples/digits/training.h"
#include "integration_tests/watch/processes.h"

namespace {

constexpr char kMark[] = "step_ms ";

int train(int argc, char** argv) {
  digits::Options options;
  options.data = "accelerate/examples/digits/digits.safetensors";
  options.epochs = 1000;
  options.max_steps = argc > 2 ? std::atoi(argv[2]) : 400;
  const digits::Result result = digits::train(options);
  if (accelerate::Runtime::current().topology().rank == 0) {
    std::printf("%s%.6f\n", kMark, result.step_seconds * 1e3);
  }
  return 0;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (std::getenv("RANK") != nullptr) return accelerate::run(argc, argv, train);
  const int runs = argc > 1 ? std::atoi(argv[1]) : 9;
  const std::vector<std::string> command(argv, argv + argc);
  std::vector<double> off, on;
  for (int run = 0; run < runs; ++run) {
    for (auto& [times, debug] : {std::pair{&off, "0"}, std::pair{&on, "1"}}) {
      const auto results =
          accelerate::watch_tests::run_processes(2, command, {{"ACCELERATE_DEBUG_MODE", debug}});
      const size_t at = results[0].output.find(kMark);
      if (at == std::string::npos) {
        std::fputs(results[0].output.c_str(), stderr);
        return 1;
      }
      times->push_back(std::atof(results[0].output.c_str() + at + sizeof(kMark) - 1));
    }
  }
  std::printf("debug mode off %.3f ms a step, on %.3f ms: %+.1f %%\n", median(off), median(on),
              100 * (median(on) / median(off) - 1));
  return 0;
}
