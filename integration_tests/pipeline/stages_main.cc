// Trains language models of which all ranks have stages, in several schedules, and prints every
// rank's losses and norms bit for bit: stages BACKEND. With `stages BACKEND shards` two ranks
// divide each stage, and with `stages BACKEND throws` the last stage throws.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "accelerate/accelerate.h"
#include "accelerate/config/parallelism_config.h"
#include "accelerate/config/pipeline_plan.h"
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

// While the other ranks wait for its gradients.
int throw_in_last_stage(const char* backend) {
  const int64_t ranks = Runtime::current().topology().world_size;
  Accelerator accelerator({.parallelism_config = ParallelismConfig({.pp_size = ranks}),
                           .kwargs_handlers = {InitProcessGroupKwargs{.backend = backend}}});
  const lm::Lm made(lm::model_config("tiny", {.blocks = lm::Blocks::kGpt, .layers = ranks}));
  auto model = accelerator.prepare(made.ptr());
  const auto [inputs, labels] = formula_batch(0, /*rows=*/4, /*length=*/16);
  accelerator.train_batch(model, std::pair(inputs, labels),
                          [](const at::Tensor&, const at::Tensor&) -> at::Tensor {
                            throw std::runtime_error("out of patience");
                          },
                          {.micro_batches = 2});
  return 0;
}

int train(int argc, char** argv) {
  const std::string_view mode = argc > 2 ? argv[2] : "";
  if (mode == "throws") return throw_in_last_stage(argv[1]);
  using enum pipeline::ScheduleKind;
  const int shards = mode == "shards" ? 2 : 1;
  const int64_t ranks = Runtime::current().topology().world_size / shards;
  const ParallelismOptions sizes = {.dp_shard_size = shards, .pp_size = ranks};
  // With the table and the head two stages a rank of one part each.
  const int64_t layers = 2 * ranks - 2;
  // The first Accelerator decides on the backend.
  const Accelerator accelerator({.parallelism_config = ParallelismConfig(sizes),
                                 .kwargs_handlers = {InitProcessGroupKwargs{.backend = argv[1]}}});
  int step = 0;
  for (const lm::Blocks blocks : {lm::Blocks::kGpt, lm::Blocks::kLlama}) {
    for (const PipelinePlan& plan :
         {PipelinePlan{.schedule = kGpipe}, PipelinePlan{.schedule = k1f1b},
          PipelinePlan{.schedule = kInterleaved, .stages_per_rank = 2},
          PipelinePlan{.schedule = kZeroBubbleV, .stages_per_rank = 2}}) {
      const FormulaOutcome outcome = train_rank_by_formula(
          {.config = lm::model_config("tiny", {.blocks = blocks, .layers = layers}),
           .sizes = sizes,
           .steps = 3,
           .rows = 4,
           .change =
               [&plan](AcceleratorOptions& options) { options.kwargs_handlers.emplace_back(plan); },
           .window = TrainBatchOptions{.micro_batches = 4 / shards}});
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
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: %s BACKEND [shards|throws]\n", argv[0]);
    return 2;
  }
  return accelerate::run(argc, argv, accelerate::train);
}
