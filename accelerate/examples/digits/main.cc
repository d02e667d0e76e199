// Trains on the UCI digits. One program for one process, several processes and a simulated cluster:
//
//   digits
//   accelerate launch --num_processes 2 digits
//   accelerate launch --simulate 2x4 digits
//
// (tools/dev demo builds and runs the last one.)
#include <cstdio>

#include <CLI/CLI.hpp>

// Without LibTorch, so that this file compiles fast; training.cc has the Accelerator.
#include "accelerate/examples/common/program.h"
#include "accelerate/examples/digits/training.h"
#include "accelerate/process/run.h"

namespace {

int train(int argc, char** argv) {
  digits::Options options;
  options.data = examples::find_data(argv[0], "accelerate/examples/digits/digits.safetensors");
  CLI::App app("Trains a small convolutional net on the UCI digits");
  app.add_option("--data", options.data, "digits.safetensors")->capture_default_str();
  app.add_option("--epochs", options.epochs)
      ->capture_default_str()
      ->check(examples::at_least_one());
  app.add_option("--batch_size", options.batch_size, "over all ranks")
      ->capture_default_str()
      ->check(examples::at_least_one());
  app.add_option("--lr", options.learning_rate)->capture_default_str();
  app.add_option("--dropout", options.dropout)->capture_default_str()->check(CLI::Range(0.0, 0.99));
  app.add_option("--max_steps", options.max_steps, "optimizer steps, over all runs; 0: no limit")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  examples::add_run_flags(app, options);
  if (const auto status = examples::parse(app, argc, argv)) return *status;

  const digits::Result result = digits::train(options);
  char findings[80];
  std::snprintf(findings, sizeof(findings), ", loss %.4f, test accuracy %.3f",
                result.epoch_losses.empty() ? 0.0 : result.epoch_losses.back(),
                result.test_accuracy);
  examples::print_last_line("digits", result.is_done_before ? ", nothing left to do" : findings,
                            result);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
