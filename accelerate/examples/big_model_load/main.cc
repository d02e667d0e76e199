// Loads a language model's checkpoint onto accelerators, host memory and disk by a device map, and
// generates tokens from there. One program for one process, several processes and a simulated
// cluster:
//
//   big_model_load --checkpoint /tmp/lm --write --max_memory '{"cpu": "100MB"}'
//   accelerate launch --simulate 1x1:h100,mem=2GiB big_model_load --model 125m --checkpoint ...
//
// accelerate/docs/example_programs.md has more.
#include <cstdio>
#include <stdexcept>
#include <string>

#include <CLI/CLI.hpp>

// Without LibTorch, so that this file compiles fast.
#include "accelerate/examples/big_model_load/loading.h"
#include "accelerate/examples/common/program.h"
#include "accelerate/process/run.h"

namespace {

int load(int argc, char** argv) {
  big_model_load::Options options;
  std::string blocks = "gpt", model = "tiny";
  lm::Config sizes;
  CLI::App app("Loads a language model's checkpoint by a device map");
  app.add_option("--checkpoint", options.checkpoint, "a folder, a file or an index")->required();
  app.add_flag("--write", options.write, "write it first, with random values");
  app.add_option("--max_shard_size", options.max_shard_size, "of the files that --write makes")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of the values that --write makes")->capture_default_str();
  app.add_option("--blocks", blocks)->capture_default_str()->check(CLI::IsMember({"gpt", "llama"}));
  app.add_option("--model", model, "sizes by the number of parameters")
      ->capture_default_str()
      ->check(CLI::IsMember(lm::model_names()));
  app.add_option("--layers", sizes.layers, "blocks, in place of the model's");
  app.add_option("--device_map", options.device_map,
                 "auto, balanced, balanced_low_0, sequential, or a map as JSON")
      ->capture_default_str()
      ->check([](const std::string& text) -> std::string {
        if (text.starts_with("{")) return "";
        return CLI::IsMember({"auto", "balanced", "balanced_low_0", "sequential"})(text);
      });
  app.add_option("--max_memory", options.max_memory,
                 "limits as JSON, such as {\"0\": \"10GiB\", \"cpu\": \"30GiB\"}; default: what is "
                 "free");
  app.add_option("--offload_folder", options.offload_folder, "for what is put on the disk")
      ->capture_default_str();
  app.add_flag("--offload_buffers", options.offload_buffers, "put buffers on the disk as well");
  app.add_option("--dtype", options.dtype, "default: the checkpoint's")
      ->check(CLI::IsMember({"float32", "float16", "bfloat16"}));
  app.add_flag("--broadcast_from_rank0", options.broadcast_from_rank0, "rank 0 reads for all");
  app.add_option("--generate", options.generate, "so many tokens, each the likeliest next one")
      ->check(CLI::NonNegativeNumber);
  app.final_callback([&] {
    sizes.blocks = blocks == "gpt" ? lm::Blocks::kGpt : lm::Blocks::kLlama;
    try {
      options.config = lm::model_config(model, sizes);
    } catch (const std::invalid_argument& error) {
      throw CLI::ValidationError(error.what());
    }
  });
  if (const auto status = examples::parse(app, argc, argv)) return *status;

  const big_model_load::Result result = big_model_load::load(options);
  accelerate::Runtime& runtime = accelerate::Runtime::current();
  if (runtime.topology().rank != 0) return 0;
  char line[160];
  std::snprintf(line, sizeof(line), "big_model_load: %.2f MB in %.6f s, %.2f GB/s\n",
                static_cast<double>(result.bytes) / 1e6, result.seconds,
                result.seconds > 0 ? static_cast<double>(result.bytes) / 1e9 / result.seconds : 0);
  runtime.write_console(accelerate::ConsoleStream::kOut, line);
  if (options.generate > 0) {
    std::snprintf(line, sizeof(line), "big_model_load: %d tokens, %.6f s a token\n",
                  options.generate, result.seconds_per_token);
    runtime.write_console(accelerate::ConsoleStream::kOut, line);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accelerate::run(argc, argv, load); }
