// Trains language models whose layers two ranks divide, with sequence shards and a parallel loss
// and without, and prints every rank's losses and norms bit for bit: parallel BACKEND.
#include <cstddef>
#include <cstdio>
#include <string>

#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "integration_tests/tensor/formula_model.h"

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
  const ParallelismOptions sizes = {.tp_size = 2};
  // The first Accelerator decides on the backend.
  const Accelerator accelerator({.parallelism_config = ParallelismConfig(sizes),
                                 .kwargs_handlers = {InitProcessGroupKwargs{.backend = argv[1]}}});
  int step = 0;
  for (const lm::Blocks blocks : {lm::Blocks::kGpt, lm::Blocks::kLlama}) {
    for (const bool has_modes : {false, true}) {
      const lm::Config config = lm::model_config("tiny", {.blocks = blocks, .layers = 2});
      const FormulaOutcome outcome = train_rank_by_formula(
          {.config = config,
           .sizes = sizes,
           .steps = 3,
           .rows = 4,
           .change = with_modes({.sequence_shards = has_modes, .parallel_loss = has_modes}, config),
           .parallel_loss = has_modes});
      for (size_t i = 0; i < outcome.losses.size(); ++i) {
        print(step++, outcome.losses[i], outcome.norms[i]);
      }
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
