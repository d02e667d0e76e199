/// What the examples' programs share: flags, and the last line of a run. Without LibTorch, so that
/// a program's main file compiles fast.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "accelerate/base/message_text.h"
#include "accelerate/base/number_text.h"
#include "accelerate/runtime/runtime.h"

namespace examples {

inline const CLI::Range& at_least_one() {
  static const CLI::Range range(int64_t{1}, int64_t{1'000'000'000});
  return range;
}

/// The data beside the program, where Bazel puts it, or in the current source tree.
inline std::string find_data(const std::string& program, const std::string& path_in_tree) {
  for (const char* workspace : {"accelerate_cpp", "_main"}) {  // Bazel 4, Bazel 7
    const std::string runfile = program + ".runfiles/" + workspace + "/" + path_in_tree;
    if (std::filesystem::exists(runfile)) return runfile;
  }
  return path_in_tree;
}

/// Flags for checkpoints, trackers and the seed.
template <typename Options>
void add_run_flags(CLI::App& app, Options& options) {
  app.add_option("--seed", options.seed)->capture_default_str();
  auto* output_dir =
      app.add_option("--output_dir", options.output_dir, "for checkpoints and the trained weights");
  app.add_option("--checkpointing_steps", options.checkpointing_steps)
      ->capture_default_str()
      ->check(at_least_one());
  app.add_flag("--resume", options.resume, "from the latest complete checkpoint, if there is one")
      ->needs(output_dir);
  app.add_option("--log_with", options.log_with,
                 "trackers for the curves: tensorboard, jsonl, ... or all")
      ->delimiter(',');
  app.add_option("--logging_dir", options.logging_dir, "for trackers that write files")
      ->capture_default_str();
}

/// "unknown option --epoch; did you mean --epochs?"
inline std::string unknown_words_text(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  for (const std::string& word : app.remaining()) {
    if (word.rfind("--", 0) != 0) continue;
    const std::string name = word.substr(2, word.find('=') - 2);
    return "unknown option --" + name + accelerate::did_you_mean(name, names, "--");
  }
  const std::vector<std::string> words = app.remaining();
  return "unexpected argument " + (words.empty() ? "" : words[0]);
}

/// The exit status to end with, where the flags ask for help or are wrong. Every rank gets the same
/// error; rank 0 prints it.
inline std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  constexpr int kUsageError = 2;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    if (accelerate::Runtime::current().topology().rank == 0) {
      std::fprintf(stderr, "%s\nRun with --help for more information.\n",
                   unknown_words_text(app).c_str());
    }
    return kUsageError;
  } catch (const CLI::ParseError& error) {
    const bool prints = accelerate::Runtime::current().topology().rank == 0;
    const int code = prints ? app.exit(error) : error.get_exit_code();
    return code == 0 ? 0 : kUsageError;
  }
  return std::nullopt;
}

/// Prints "NAME: 8 ranks on 2x4FINDINGS, step time T ms, peak memory of tensors M GiB per device"
/// on rank 0. The costs are left out where no device counts its memory, and where there was no
/// step.
template <typename Result>
void print_last_line(const std::string& name, const std::string& findings, const Result& result) {
  accelerate::Runtime& runtime = accelerate::Runtime::current();
  const accelerate::Topology& topology = runtime.topology();
  if (topology.rank != 0) return;
  std::string line = name + ": " + std::to_string(topology.world_size) +
                     (topology.world_size == 1 ? " rank" : " ranks") + " on " + topology.shape();
  line += findings;
  if (result.peak_memory_bytes > 0 && result.step_seconds > 0) {
    char costs[160];
    std::snprintf(costs, sizeof(costs), ", step time %.6f ms, peak memory of tensors %s per device",
                  result.step_seconds * 1e3,
                  accelerate::binary_byte_text(result.peak_memory_bytes).c_str());
    line += costs;
  }
  runtime.write_console(accelerate::ConsoleStream::kOut, line + "\n");
}

}  // namespace examples
