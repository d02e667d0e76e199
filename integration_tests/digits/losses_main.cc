// Prints the losses of ten steps with dropout, bit for bit, for comparison across run modes.
#include <cstdio>
#include <string>

#include "accelerate/accelerate.h"
#include "accelerate/examples/digits/training.h"

namespace {

int train(int argc, char** argv) {
  const digits::Result result = digits::train({.data = argv[1], .dropout = 0.2, .max_steps = 10});
  accelerate::Runtime& runtime = accelerate::Runtime::current();
  // Never deleted, on purpose: memory of the device that outlives the rank.
  if (argc > 2 && argv[2] == std::string("leak")) {
    new at::Tensor(torch::ones({4}, runtime.device()));
  }
  if (runtime.topology().rank != 0) return 0;
  for (double loss : result.step_losses) {
    char line[64];
    std::snprintf(line, sizeof(line), "loss %a\n", loss);
    runtime.write_console(accelerate::ConsoleStream::kOut, line);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
