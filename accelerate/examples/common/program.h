/// What the examples' programs share: flags, and the last line of a run. Without LibTorch, so that
/// a program's main file compiles fast.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
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

/// The data where Bazel puts it, in the current source tree, or beside the program, where a release
/// has it.
inline std::string find_data(const std::string& program, const std::string& path_in_tree) {
  for (const char* workspace : {"accelerate_cpp", "_main"}) {  // Bazel 4, Bazel 7
    const std::string runfile = program + ".runfiles/" + workspace + "/" + path_in_tree;
    if (std::filesystem::exists(runfile)) return runfile;
  }
  std::error_code ignored;
  const std::filesystem::path beside =
      std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() /
      std::filesystem::path(path_in_tree).filename();
  const bool is_beside =
      !std::filesystem::exists(path_in_tree, ignored) && std::filesystem::exists(beside, ignored);
  return is_beside ? beside.string() : path_in_tree;
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

/// Prints what is wrong with the flags. Every rank has the same error. Ranks of one process leave
/// it to rank 0. A rank with a process of its own may be stopped before it prints, so each prints
/// it, as accelerate::run prints errors; the launcher shows equal ones once.
inline void print_usage_error(const std::string& text) {
  const accelerate::Runtime& runtime = accelerate::Runtime::current();
  const accelerate::Topology& topology = runtime.topology();
  const bool is_one_of_several = runtime.owns_process() && topology.world_size > 1;
  if (topology.rank != 0 && !is_one_of_several) return;
  const std::string rank = std::to_string(topology.rank);
  const std::string beginning =
      is_one_of_several ? "accelerate: rank " + rank + " failed: " : std::string();
  std::fprintf(stderr, "%s%s\nRun with --help for more information.\n", beginning.c_str(),
               text.c_str());
}

/// The exit status to end with, where the flags ask for help, which rank 0 prints, or are wrong.
inline std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  constexpr int kUsageError = 2;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    print_usage_error(unknown_words_text(app));
    return kUsageError;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      if (accelerate::Runtime::current().topology().rank == 0) app.exit(error);
      return 0;
    }
    print_usage_error(error.what());
    return kUsageError;
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
