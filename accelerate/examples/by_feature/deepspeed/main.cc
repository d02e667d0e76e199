// Trains a language model by ZeRO, as a configuration of DeepSpeed or the launcher's flags say:
//
//   accelerate launch --num_processes 2 --use_deepspeed --zero_stage 3 deepspeed
//   accelerate launch --simulate 2x4:h100 --use_deepspeed --zero_stage 1 --mixed_precision bf16
//       --gradient_accumulation_steps 2 deepspeed
//   accelerate launch --simulate 1x8:h100 --use_deepspeed --mixed_precision bf16
//       --deepspeed_config_file accelerate/examples/by_feature/deepspeed/zero2_adamw.json deepspeed
//
// accelerate/docs/deepspeed_options.md says what the configuration may have.
#include <cstdio>
#include <string>

#include <CLI/CLI.hpp>

// Without LibTorch, so that this file compiles fast; training.cc has the Accelerator.
#include "accelerate/examples/by_feature/deepspeed/training.h"
#include "accelerate/examples/common/program.h"
#include "accelerate/process/run.h"

namespace {

int train(int argc, char** argv) {
  deepspeed::Options options;
  std::string model = "tiny";
  CLI::App app("Trains a language model by ZeRO");
  app.add_option("--model", model, "sizes by the number of parameters")
      ->capture_default_str()
      ->check(CLI::IsMember(lm::model_names()));
  app.add_option("--batch_size", options.batch_size, "sequences of each rank in a micro-step")
      ->capture_default_str()
      ->check(examples::at_least_one());
  app.add_option("--max_steps", options.max_steps, "micro-steps")
      ->capture_default_str()
      ->check(examples::at_least_one());
  app.add_option("--learning_rate", options.learning_rate)->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.final_callback([&] { options.config = lm::model_config(model); });
  if (const auto status = examples::parse(app, argc, argv)) return *status;
  const deepspeed::Result result = deepspeed::train(options);
  char findings[120];
  std::snprintf(findings, sizeof(findings), ", loss %.4f to %.4f, gradient norm %.3f, rate %.2e",
                result.losses.front(), result.losses.back(), result.gradient_norm,
                result.learning_rate);
  examples::print_last_line("deepspeed", findings, result);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
