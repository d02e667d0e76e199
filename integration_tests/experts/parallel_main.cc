// Trains language models whose experts two ranks divide, dropless and with a capacity, a balance
// loss and a shared expert, and prints every rank's losses and norms bit for bit: parallel BACKEND.
#include <cstddef>
#include <cstdio>

#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "integration_tests/experts/expert_training.h"

namespace accelerate {
namespace {

// Each rank's line, in one piece.
void print(int step, double loss, double norm) {
  Runtime& runtime = Runtime::current();
  char line[128];
  std::snprintf(line, sizeof(line), "rank %d step %d loss %a norm %a\n", runtime.topology().rank,
                step, loss, norm);
  runtime.write_console(ConsoleStream::kOut, line);
}

int train(int, char** argv) {
  const ParallelismOptions sizes = {.dp_shard_size = 2, .ep_size = 2};
  // The first Accelerator decides on the backend.
  const Accelerator accelerator({.parallelism_config = ParallelismConfig(sizes),
                                 .kwargs_handlers = {InitProcessGroupKwargs{.backend = argv[1]}}});
  int step = 0;
  for (const bool has_capacity : {false, true}) {
    ExpertTraining training{
        .config = tiny_experts(/*layers=*/2), .sizes = sizes, .steps = 3, .rows = 4};
    if (has_capacity) {
      training.router = {.capacity_factor = 1.25, .balance_loss = 0.01};
      training.config.shared_intermediate = 64;
    }
    const ExpertOutcome outcome = train_rank_with_experts(training);
    for (size_t i = 0; i < outcome.losses.size(); ++i) {
      print(step++, outcome.losses[i], outcome.norms[i]);
    }
  }
  return 0;
}

}  // namespace
}  // namespace accelerate

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s BACKEND\n", argv[0]);
    return 2;
  }
  return accelerate::run(argc, argv, accelerate::train);
}
