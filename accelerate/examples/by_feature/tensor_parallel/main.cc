// Trains a small language model whose layers ranks divide, by the launcher's flags:
//
//   tensor_parallel
//   accelerate launch --num_processes 2 --use_parallelism_config --parallelism_config_tp_size 2
//       tensor_parallel --print_layout
//   accelerate launch --simulate 1x8:h100 --use_parallelism_config --parallelism_config_tp_size 4
//       --parallelism_config_dp_shard_size 2 tensor_parallel --sequence_parallel --parallel_loss
//
// accelerate/docs/tensor_parallelism.md says what a plan is.
#include <cstdio>

#include <CLI/CLI.hpp>

// Without LibTorch, so that this file compiles fast; training.cc has the Accelerator.
#include "accelerate/examples/by_feature/tensor_parallel/training.h"
#include "accelerate/examples/common/program.h"
#include "accelerate/process/run.h"

namespace {

int train(int argc, char** argv) {
  tensor_parallel::Options options;
  CLI::App app("Trains a small language model whose layers are divided among ranks");
  app.add_flag("--sequence_parallel", options.sequence_parallel,
               "between divided layers each rank has a part of every sequence");
  app.add_flag("--keep_gathered_inputs", options.keep_gathered_inputs,
               "what layers gather of such parts stays for the backward pass: less is sent, more "
               "is kept");
  app.add_flag("--parallel_loss", options.parallel_loss,
               "each rank keeps its part of the logits, of which the loss is computed");
  app.add_flag("--print_layout", options.print_layout,
               "where parameters are, and what a rank sends for them");
  app.add_option("--dropout", options.dropout, "in training, of what blocks add")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--batch_size", options.batch_size,
                 "sequences of each share of the data in a step")
      ->capture_default_str()
      ->check(examples::at_least_one());
  app.add_option("--max_steps", options.max_steps)
      ->capture_default_str()
      ->check(examples::at_least_one());
  app.add_option("--learning_rate", options.learning_rate)->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  if (const auto status = examples::parse(app, argc, argv)) return *status;
  const tensor_parallel::Result result = tensor_parallel::train(options);
  char findings[80];
  std::snprintf(findings, sizeof(findings), ", loss %.4f to %.4f", result.losses.front(),
                result.losses.back());
  examples::print_last_line("tensor_parallel", findings, result);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
