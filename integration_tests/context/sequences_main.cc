// Trains language models on sequences that two ranks divide, and prints every rank's losses and
// norms bit for bit: sequences BACKEND HOW, where HOW is "alltoall" or "allgather" (context
// parallelism by this exchange), or "ulysses".
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/examples/lm/config.h"
#include "integration_tests/context/context_training.h"
#include "integration_tests/ulysses/sequence_training.h"

namespace accelerate {
namespace {

constexpr int kSteps = 3;
constexpr int64_t kRows = 2;

// Each rank's line, in one piece.
void print(size_t step, double loss, double norm) {
  Runtime& runtime = Runtime::current();
  char line[128];
  std::snprintf(line, sizeof(line), "rank %d step %zu loss %a norm %a\n", runtime.topology().rank,
                step, loss, norm);
  runtime.write_console(ConsoleStream::kOut, line);
}

int train(int, char** argv) {
  const std::string how = argv[2];
  ParallelismOptions sizes;
  if (how == "ulysses") {
    sizes.sp_size = 2;
  } else {
    sizes.cp_size = 2;
    sizes.cp_handler = TorchContextParallelConfig{.cp_comm_strategy = how};
  }
  // The first Accelerator decides on the backend.
  const Accelerator accelerator({.parallelism_config = ParallelismConfig(sizes),
                                 .kwargs_handlers = {InitProcessGroupKwargs{.backend = argv[1]}}});
  size_t number = 0;
  for (const lm::Blocks blocks : {lm::Blocks::kGpt, lm::Blocks::kLlama}) {
    const lm::Config config =
        lm::model_config("tiny", {.blocks = blocks, .layers = 2, .sequence_length = 32});
    const lm::LmOptions shared = {.shares_key_heads = true};
    std::vector<double> losses, norms;
    if (how == "ulysses") {
      const TokenShare own = train_rank_of_sequences(
          {.config = config, .lm = shared, .sizes = sizes, .steps = kSteps, .rows = kRows});
      losses = own.losses;
      norms = own.norms;
    } else {
      const TokenShare own = train_rank_in_context(
          {.config = config, .lm = shared, .sizes = sizes, .steps = kSteps, .rows = kRows});
      losses = own.losses;
      norms = own.norms;
    }
    for (size_t i = 0; i < losses.size(); ++i) print(number++, losses[i], norms[i]);
  }
  return 0;
}

}  // namespace
}  // namespace accelerate

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s BACKEND alltoall|allgather|ulysses\n", argv[0]);
    return 2;
  }
  return accelerate::run(argc, argv, accelerate::train);
}
