// Trains a language model that ranks divide, by the launcher's flags alone:
//
//   accelerate launch --num_processes 2 --use_fsdp --fsdp_version 2 fsdp
//   accelerate launch --simulate 2x4:h100 --use_fsdp --fsdp_sharding_strategy HYBRID_SHARD fsdp
//   accelerate launch --simulate 1x8:h100 --use_fsdp --fsdp_version 2 --mixed_precision bf16
//       --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP --fsdp_activation_checkpointing true fsdp
//
// accelerate/docs/sharding_options.md says what the flags do.
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

// Without LibTorch, so that this file compiles fast; training.cc has the Accelerator.
#include "accelerate/examples/by_feature/fsdp/training.h"
#include "accelerate/examples/common/program.h"
#include "accelerate/process/run.h"

namespace {

int train(int argc, char** argv) {
  fsdp::Options options;
  std::string model = "tiny";
  CLI::App app("Trains a language model whose parameters are divided among ranks");
  app.add_option("--model", model, "sizes by the number of parameters")
      ->capture_default_str()
      ->check(CLI::IsMember(lm::model_names()));
  app.add_option("--batch_size", options.batch_size, "sequences of each rank in a step")
      ->capture_default_str()
      ->check(examples::at_least_one());
  app.add_option("--max_steps", options.max_steps)
      ->capture_default_str()
      ->check(examples::at_least_one());
  app.add_option("--learning_rate", options.learning_rate)->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_option("--weights", options.weights, "a file for the trained weights");
  app.final_callback([&] { options.config = lm::model_config(model); });
  if (const auto status = examples::parse(app, argc, argv)) return *status;
  const fsdp::Result result = fsdp::train(options);
  char findings[80];
  std::snprintf(findings, sizeof(findings), ", loss %.4f to %.4f", result.losses.front(),
                result.losses.back());
  examples::print_last_line("fsdp", findings, result);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
