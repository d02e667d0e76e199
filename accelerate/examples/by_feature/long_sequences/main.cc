// Trains a language model on sequences that ranks divide, by the launcher's flags:
//
//   long_sequences
//   accelerate launch --num_processes 2 --use_parallelism_config --parallelism_config_cp_size 2
//       long_sequences
//   accelerate launch --simulate 1x8:h100 --use_parallelism_config --parallelism_config_sp_size 4
//       --parallelism_config_dp_shard_size 2 long_sequences --sequence_length 4096
//
// accelerate/docs/long_sequences.md says what the flags do.
#include <cstdint>
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

// Without LibTorch, so that this file compiles fast; training.cc has the Accelerator.
#include "accelerate/examples/by_feature/long_sequences/training.h"
#include "accelerate/examples/common/program.h"
#include "accelerate/process/run.h"

namespace {

int train(int argc, char** argv) {
  long_sequences::Options options;
  std::string model = "tiny";
  int64_t length = -1;
  CLI::App app("Trains a language model on sequences that are divided among ranks");
  app.add_option("--model", model, "sizes by the number of parameters")
      ->capture_default_str()
      ->check(CLI::IsMember(lm::model_names()));
  app.add_option("--sequence_length", length, "tokens of a sequence; the model's by default")
      ->check(examples::at_least_one());
  app.add_flag("--activation_checkpointing", options.activation_checkpointing,
               "blocks are computed again in the backward pass");
  app.add_option("--batch_size", options.batch_size,
                 "sequences of each share of the data in a step")
      ->capture_default_str()
      ->check(examples::at_least_one());
  app.add_option("--max_steps", options.max_steps)
      ->capture_default_str()
      ->check(examples::at_least_one());
  app.add_option("--learning_rate", options.learning_rate)->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.final_callback([&] {
    options.config =
        lm::model_config(model, {.blocks = lm::Blocks::kLlama, .sequence_length = length});
  });
  if (const auto status = examples::parse(app, argc, argv)) return *status;
  const long_sequences::Result result = long_sequences::train(options);
  char findings[80];
  std::snprintf(findings, sizeof(findings), ", loss %.4f to %.4f", result.losses.front(),
                result.losses.back());
  examples::print_last_line("long_sequences", findings, result);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
