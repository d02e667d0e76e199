// Prints the losses of ten steps with dropout, bit for bit: losses DATA BACKEND.
#include <cstdio>
#include <string>

#include "accelerate/accelerate.h"
#include "accelerate/examples/digits/training.h"

namespace {

int train(int, char** argv) {
  // The first Accelerator decides on the backend.
  const accelerate::Accelerator accelerator(
      {.kwargs_handlers = {accelerate::InitProcessGroupKwargs{.backend = argv[2]}}});
  const digits::Result result = digits::train({.data = argv[1], .dropout = 0.2, .max_steps = 10});
  if (!accelerator.is_main_process()) return 0;
  for (double loss : result.step_losses) {
    char line[64];
    std::snprintf(line, sizeof(line), "loss %a\n", loss);
    accelerator.runtime().write_console(accelerate::ConsoleStream::kOut, line);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s DATA BACKEND\n", argv[0]);
    return 2;
  }
  return accelerate::run(argc, argv, train);
}
