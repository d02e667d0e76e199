// Trains on the UCI digits. One program for one process, several processes and a simulated cluster:
//
//   digits
//   accelerate launch --num_processes 2 digits
//   accelerate launch --simulate 2x4 digits
//
// (tools/dev demo builds and runs the last one.)
#include <cstdio>
#include <filesystem>
#include <string>

#include <CLI/CLI.hpp>

// Without LibTorch, so that this file compiles fast; training.cc has the Accelerator.
#include "accelerate/base/number_text.h"
#include "accelerate/examples/digits/training.h"
#include "accelerate/process/run.h"
#include "accelerate/runtime/runtime.h"

namespace {

constexpr int kUsageError = 2;
constexpr char kDataInTree[] = "accelerate/examples/digits/digits.csv.gz";

// The data beside the program, where Bazel puts it, or in the current source tree.
std::string find_data(const std::string& program) {
  const std::string runfile = program + ".runfiles/accelerate_cpp/" + kDataInTree;
  return std::filesystem::exists(runfile) ? runfile : kDataInTree;
}

int train(int argc, char** argv) {
  digits::Options options;
  options.data = find_data(argv[0]);
  CLI::App app("Trains a small convolutional net on the UCI digits");
  app.add_option("--data", options.data, "digits.csv.gz")->capture_default_str();
  const CLI::Range at_least_one(int64_t{1}, int64_t{1'000'000});
  app.add_option("--epochs", options.epochs)->capture_default_str()->check(at_least_one);
  app.add_option("--batch_size", options.batch_size, "over all ranks")
      ->capture_default_str()
      ->check(at_least_one);
  app.add_option("--lr", options.learning_rate)->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_option("--dropout", options.dropout)->capture_default_str()->check(CLI::Range(0.0, 0.99));
  app.add_option("--max_steps", options.max_steps, "optimizer steps, over all runs; 0: no limit")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  auto* output_dir =
      app.add_option("--output_dir", options.output_dir, "for checkpoints and the trained weights");
  app.add_option("--checkpointing_steps", options.checkpointing_steps)
      ->capture_default_str()
      ->check(at_least_one);
  app.add_flag("--resume", options.resume, "from the latest complete checkpoint, if there is one")
      ->needs(output_dir);
  app.add_option("--log_with", options.log_with,
                 "trackers for the curves: tensorboard, jsonl, ... or all")
      ->delimiter(',');
  app.add_option("--logging_dir", options.logging_dir, "for trackers that write files")
      ->capture_default_str();
  accelerate::Runtime& runtime = accelerate::Runtime::current();
  const accelerate::Topology& topology = runtime.topology();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Every rank gets the same error; rank 0 prints it.
    const int code = topology.rank == 0 ? app.exit(error) : error.get_exit_code();
    return code == 0 ? 0 : kUsageError;
  }

  const digits::Result result = digits::train(options);
  if (topology.rank != 0) return 0;
  char line[160];
  std::snprintf(
      line, sizeof(line), "demo: %d %s on %s, loss %.4f, test accuracy %.3f", topology.world_size,
      topology.world_size == 1 ? "rank" : "ranks", topology.shape().c_str(),
      result.epoch_losses.empty() ? 0.0 : result.epoch_losses.back(), result.test_accuracy);
  char device[160] = "";
  if (result.peak_memory_bytes > 0) {
    std::snprintf(device, sizeof(device), ", step time %.6f ms, peak memory %s per device",
                  result.step_seconds * 1e3,
                  accelerate::binary_byte_text(result.peak_memory_bytes).c_str());
  }
  runtime.write_console(accelerate::ConsoleStream::kOut, std::string(line) + device + "\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
