// Trains a GPT on the bytes of a text, in one process, in several and on a simulated cluster:
//
//   gpt
//   accelerate launch --num_processes 2 gpt --size 10M --steps 20
//   accelerate launch --simulate 2x4:h100 gpt --size 10M --precision bf16 --steps 5
#include <array>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

// Without LibTorch, so that this file compiles fast; training.cc has the Accelerator.
#include "accelerate/base/number_text.h"
#include "accelerate/examples/gpt/training.h"
#include "accelerate/process/run.h"
#include "accelerate/runtime/runtime.h"

namespace {

constexpr int kUsageError = 2;
constexpr char kDataInTree[] = "accelerate/examples/gpt/kjv.txt";

// The data beside the program, where Bazel puts it, or in the current source tree.
std::string find_data(const std::string& program) {
  const std::string runfile = program + ".runfiles/accelerate_cpp/" + kDataInTree;
  return std::filesystem::exists(runfile) ? runfile : kDataInTree;
}

// A flag that replaces a number of the shape that --size names.
struct ShapeFlag {
  const char* name;
  int64_t gpt::Shape::* field;
  const char* help;
  std::optional<int64_t> value = std::nullopt;
};

int train(int argc, char** argv) {
  gpt::Options options;
  options.data = find_data(argv[0]);
  std::string size;
  std::array<ShapeFlag, 5> shape_flags = {{
      {"--layers", &gpt::Shape::layers, "blocks"},
      {"--heads", &gpt::Shape::heads, "heads of a block's attention"},
      {"--width", &gpt::Shape::width, "the size of a token's vector"},
      {"--context", &gpt::Shape::context, "tokens of a sequence"},
      {"--vocabulary", &gpt::Shape::vocabulary, "different tokens; bytes need 256"},
  }};
  bool untied_head = false;
  CLI::App app("Trains a GPT on the bytes of a text");
  const CLI::Range at_least_one(int64_t{1}, int64_t{1'000'000'000});
  app.add_option("--data", options.data, "a text")->capture_default_str();
  app.add_option("--size", size, "a shape by its number of parameters; default: a tiny one")
      ->check(CLI::IsMember(gpt::size_names()));
  for (ShapeFlag& flag : shape_flags) {
    app.add_option(flag.name, flag.value, flag.help)->check(at_least_one);
  }
  app.add_flag("--untied_head", untied_head, "the head has weights of its own");
  app.add_option("--batch_size", options.batch_size, "sequences of each rank in a step")
      ->capture_default_str()
      ->check(at_least_one);
  app.add_option("--steps", options.steps)->capture_default_str()->check(at_least_one);
  app.add_option("--precision", options.precision, "default: what the launcher says")
      ->check(CLI::IsMember({"no", "bf16", "fp16", "fp8"}));
  app.add_flag("--activation_checkpointing", options.activation_checkpointing,
               "compute a block's results again in the backward pass instead of keeping them");
  app.add_option("--optimizer", options.optimizer)
      ->capture_default_str()
      ->check(CLI::IsMember({"adamw", "sgd"}));
  app.add_option("--learning_rate", options.learning_rate)->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_option("--log_every", options.log_every, "steps between two rows; 0: no rows")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
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
  if (!size.empty()) options.shape = gpt::shape_of_size(size);
  for (const ShapeFlag& flag : shape_flags) {
    options.shape.*flag.field = flag.value.value_or(options.shape.*flag.field);
  }
  options.shape.tied_head = !untied_head;

  const gpt::Result result = gpt::train(options);
  if (topology.rank != 0) return 0;
  char line[200];
  std::snprintf(line, sizeof(line),
                "gpt: %d %s on %s, %.1f million parameters, step time %.6f ms, %.0f tokens/s",
                topology.world_size, topology.world_size == 1 ? "rank" : "ranks",
                topology.shape().c_str(), static_cast<double>(options.shape.num_parameters()) / 1e6,
                result.step_seconds * 1e3, result.tokens_per_second);
  std::string text = line;
  if (result.peak_memory_bytes > 0) {
    text += ", peak memory " + accelerate::binary_byte_text(result.peak_memory_bytes);
    text += " per device";
  }
  runtime.write_console(accelerate::ConsoleStream::kOut, text + "\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, train); }
