#include "launch/options.h"

#include <algorithm>
#include <utility>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace accelerate::launch {
namespace {

constexpr char kLaunch[] = "launch";
constexpr char kMergeWeights[] = "merge-weights";

// Option values as text. Numbers are converted here and not by CLI11, so that every error names
// option, value and range in the same words.
struct RawOptions {
  std::optional<std::string> num_processes;
  std::optional<std::string> simulate;
  std::optional<std::string> simulate_seed;
  std::optional<std::string> report;
  std::optional<std::string> main_process_port;
  std::optional<std::string> kill_grace;
};

void add_launch_options(CLI::App& launch, RawOptions& raw) {
  launch.usage("Usage: accelerate launch [OPTIONS] PROGRAM [ARGS...]");
  launch.footer(
      "Everything after PROGRAM belongs to the program. Option names may be spelt with _ or -.\n"
      "Exit code: the first failing rank's own; 128+N after signal N; 2 for a bad command line;\n"
      "126 if PROGRAM cannot be executed, 127 if it is not found; 1 if the launcher itself fails.");
  auto add = [&launch](const char* name, std::optional<std::string>& value, const char* help) {
    return launch.add_option(name, value, help)->take_last()->type_name("");
  };
  add("--num_processes", raw.num_processes, "N: ranks to start on this machine (default 1)");
  add("--simulate", raw.simulate,
      "SPEC: run on a simulated cluster inside one process, for example 2x4 or 2x4:h100");
  add("--simulate_seed", raw.simulate_seed, "S: scheduler seed of the simulated run");
  add("--report", raw.report,
      "DIR: where the simulated run writes report.html, trace.json and summary.json");
  add("--main_process_port", raw.main_process_port,
      "P: port of the rendezvous store (default 0: any free port)");
  add("--kill_grace", raw.kill_grace, "SECONDS: from asking ranks to stop to killing them")
      ->group("");
}

void add_merge_options(CLI::App& merge, MergeOptions& options) {
  merge.usage("Usage: accelerate merge-weights [OPTIONS] CHECKPOINT_DIR OUTPUT_PATH");
  merge.footer(
      "Option names may be spelt with _ or -.\n"
      "Exit code: 0; 1 if the weights cannot be merged; 2 for a bad command line.");
  merge
      .add_option("checkpoint_dir", options.checkpoint_dir,
                  "folder of a sharded checkpoint: metadata.json, or an index, with its shards")
      ->type_name("");
  merge
      .add_option("output_path", options.output_path,
                  "folder for model.safetensors; made if it is not there")
      ->type_name("");
  merge.add_flag("--unsafe_serialization", options.unsafe_serialization,
                 "has no effect: pickle is never written");
  merge.add_flag("--remove_checkpoint_dir", options.remove_checkpoint_dir,
                 "remove the files that were merged, and their folder if nothing else is in it");
}

// `--num-processes=2` becomes `--num_processes`; the dashes in front and the value stay out of it.
std::string canonical_name(absl::string_view word) {
  absl::string_view name = word.substr(0, word.find('='));
  const size_t dashes = std::min(name.find_first_not_of('-'), name.size());
  return absl::StrCat(name.substr(0, dashes),
                      absl::StrReplaceAll(name.substr(dashes), {{"-", "_"}}));
}

struct SplitArguments {
  std::vector<std::string> launcher;  // one word an option, `--name=value`
  std::vector<std::string> program;
};

// CLI11 would look for its options behind the program as well, so the border is drawn before it
// sees anything; it is asked only which options exist and whether they take a value.
absl::StatusOr<SplitArguments> split_at_program(const CLI::App& launch,
                                                absl::Span<const std::string> args) {
  SplitArguments split;
  size_t next = 0;
  while (next < args.size() && args[next].size() > 1 && args[next][0] == '-') {
    const std::string& word = args[next++];
    if (word == "--") break;
    std::string name = canonical_name(word);
    const CLI::Option* option = launch.get_option_no_throw(name);
    if (option == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "unknown option ", word, "; see accelerate launch --help (options of the program go ",
          "after its name)"));
    }
    const size_t equals = word.find('=');
    if (option->get_items_expected_max() == 0) {
      if (equals != std::string::npos) {
        return absl::InvalidArgumentError(absl::StrCat(name, " takes no value"));
      }
      split.launcher.push_back(std::move(name));
      continue;
    }
    std::string value;
    if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (next < args.size()) {
      value = args[next++];
    }
    if (value.empty()) return absl::InvalidArgumentError(absl::StrCat(name, " needs a value"));
    split.launcher.push_back(absl::StrCat(name, "=", value));
  }
  split.program.assign(args.begin() + next, args.end());
  return split;
}

absl::StatusOr<uint64_t> parse_number(absl::string_view name, absl::string_view text, uint64_t min,
                                      uint64_t max) {
  uint64_t value = 0;
  if (absl::SimpleAtoi(text, &value) && value >= min && value <= max) return value;
  return absl::InvalidArgumentError(
      absl::StrCat(name, "=", text, " is not a whole number from ", min, " to ", max));
}

absl::Status check_combination(const RawOptions& raw) {
  if (!raw.simulate) {
    if (raw.simulate_seed) {
      return absl::InvalidArgumentError("--simulate_seed has no meaning without --simulate");
    }
    if (raw.report) return absl::InvalidArgumentError("--report has no meaning without --simulate");
    return absl::OkStatus();
  }
  if (raw.num_processes) {
    return absl::InvalidArgumentError(
        "--simulate and --num_processes exclude each other: a simulated cluster runs in one "
        "process and takes its number of ranks from the topology");
  }
  if (raw.main_process_port) {
    return absl::InvalidArgumentError(
        "--simulate and --main_process_port exclude each other: a simulated cluster has no port");
  }
  return absl::OkStatus();
}

// Words before a `--` with their option names made canonical.
std::vector<std::string> canonical_words(absl::Span<const std::string> args) {
  std::vector<std::string> words(args.begin(), args.end());
  for (std::string& word : words) {
    if (word == "--") break;
    if (!absl::StartsWith(word, "--")) continue;
    const size_t equals = std::min(word.find('='), word.size());
    word = absl::StrCat(canonical_name(word), word.substr(equals));
  }
  return words;
}

absl::Status check_merge(const MergeOptions& merge) {
  if (!merge.checkpoint_dir.empty() && !merge.output_path.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "two folders are needed; usage: accelerate merge-weights [OPTIONS] CHECKPOINT_DIR "
      "OUTPUT_PATH");
}

absl::StatusOr<LaunchOptions> interpret(const RawOptions& raw, std::vector<std::string> command) {
  if (absl::Status ok = check_combination(raw); !ok.ok()) return ok;
  LaunchOptions options;
  if (raw.num_processes) {
    absl::StatusOr<uint64_t> count =
        parse_number("--num_processes", *raw.num_processes, 1, kMaxProcesses);
    if (!count.ok()) return count.status();
    options.num_processes = static_cast<int>(*count);
  }
  if (raw.simulate_seed) {
    absl::StatusOr<uint64_t> seed =
        parse_number("--simulate_seed", *raw.simulate_seed, 0, UINT64_MAX);
    if (!seed.ok()) return seed.status();
    options.simulate_seed = *seed;
  }
  if (raw.main_process_port) {
    absl::StatusOr<uint64_t> port =
        parse_number("--main_process_port", *raw.main_process_port, 0, UINT16_MAX);
    if (!port.ok()) return port.status();
    options.main_process_port = static_cast<uint16_t>(*port);
  }
  if (raw.kill_grace) {
    absl::StatusOr<uint64_t> seconds = parse_number("--kill_grace", *raw.kill_grace, 0, 86400);
    if (!seconds.ok()) return seconds.status();
    options.kill_grace = absl::Seconds(static_cast<int64_t>(*seconds));
  }
  options.simulate = raw.simulate;
  options.report = raw.report;
  if (command.empty() || command[0].empty()) {
    return absl::InvalidArgumentError(
        "no program given; usage: accelerate launch [OPTIONS] PROGRAM [ARGS...]");
  }
  options.command = std::move(command);
  return options;
}

}  // namespace

absl::StatusOr<CommandLine> parse_command_line(absl::Span<const std::string> args) {
  CLI::App root("Accelerate for C++: starts training programs on this machine.", "accelerate");
  root.set_version_flag("--version", absl::StrCat("accelerate ", kVersion));
  RawOptions raw;
  CLI::App& launch =
      *root.add_subcommand(kLaunch, "Start a program once per rank and look after the ranks.");
  add_launch_options(launch, raw);
  MergeOptions merge;
  add_merge_options(
      *root.add_subcommand(kMergeWeights, "Make whole weights of a sharded checkpoint."), merge);

  if (args.empty()) {
    return absl::InvalidArgumentError("no command given; see accelerate --help");
  }
  SplitArguments split;
  if (args[0] == kLaunch) {
    absl::StatusOr<SplitArguments> found = split_at_program(launch, args.subspan(1));
    if (!found.ok()) return found.status();
    split = *std::move(found);
    split.launcher.insert(split.launcher.begin(), kLaunch);
  } else if (args[0] == kMergeWeights) {
    split.launcher = canonical_words(args);
  } else if (root.get_option_no_throw(args[0]) != nullptr) {
    split.launcher.assign(args.begin(), args.end());
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown ", absl::StartsWith(args[0], "-") ? "option " : "command ", args[0],
                     "; see accelerate --help"));
  }

  try {
    // CLI11 takes its words from the back.
    root.parse(std::vector<std::string>(split.launcher.rbegin(), split.launcher.rend()));
  } catch (const CLI::CallForHelp&) {
    return InformationalText{root.help()};
  } catch (const CLI::CallForVersion& version) {
    return InformationalText{absl::StrCat(version.what(), "\n")};
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(error.what());
  }
  if (args[0] == kMergeWeights) {
    if (absl::Status ok = check_merge(merge); !ok.ok()) return ok;
    return merge;
  }
  absl::StatusOr<LaunchOptions> options = interpret(raw, std::move(split.program));
  if (!options.ok()) return options.status();
  return *std::move(options);
}

}  // namespace accelerate::launch
