/// The command line of `accelerate`, as a value.
///
/// First of the launcher's four steps: parse, plan, spawn, supervise. Nothing here looks at the
/// machine; whether the program exists or a port is free is the business of later steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "launch/version.h"

namespace accelerate::launch {

/// More ranks than this on one machine is taken for a typing error.
inline constexpr int kMaxProcesses = 1024;

/// What `accelerate launch` was asked to do. Valid once parsed: at most one of the real and the
/// simulated form is asked for, and `command` is not empty.
struct LaunchOptions {
  /// Ranks to start on this machine, 1 to kMaxProcesses.
  int num_processes = 1;
  /// Topology for a simulated run, never empty. The program, not the launcher, understands it.
  std::optional<std::string> simulate;
  /// Scheduler seed of a simulated run. Unset: what the environment says, else the default.
  std::optional<uint64_t> simulate_seed;
  /// Directory for a simulated run's report.
  std::optional<std::string> report;
  /// Port of the rendezvous store; 0 takes any free one.
  uint16_t main_process_port = 0;
  /// How long ranks may take to stop before they are killed. Unset: the supervisor's defaults.
  std::optional<absl::Duration> kill_grace;
  /// The program as typed, then its arguments, untouched.
  std::vector<std::string> command;
};

/// What `accelerate merge-weights` was asked to do. Valid once parsed: no path is empty.
struct MergeOptions {
  std::string checkpoint_dir;
  std::string output_path;
  /// Accepted, and without effect: pickle is never written.
  bool unsafe_serialization = false;
  bool remove_checkpoint_dir = false;
};

/// A text that was asked for instead of a run (`--help`, `--version`); ends with a newline.
struct InformationalText {
  std::string text;
};

using CommandLine = std::variant<InformationalText, LaunchOptions, MergeOptions>;

/// Parses `args`, which excludes the launcher's own name.
///
/// Option names may be spelt with `_` or `-`; a repeated option's last value counts. Options end at
/// the first word that is neither an option nor its value: that word is the program, and everything
/// after it is the program's, including `--help` and `--`. A `--` before the program is skipped.
/// Options of other commands may stand anywhere before a `--`.
/// Errors: InvalidArgument, one line that names the option and the value.
absl::StatusOr<CommandLine> parse_command_line(absl::Span<const std::string> args);

}  // namespace accelerate::launch
