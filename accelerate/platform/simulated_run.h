/// What `accelerate launch` and a simulated run tell each other besides the run itself
/// (environment.h), and the command that repeats the run.
///
/// That command gives the same run whatever the default configuration file of its reader says: it
/// names the cluster, the seed, and each setting that is not the default one as a flag, wherever
/// the run had it from. A variable that no flag stands for is set before the command.
/// Threads: pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "accelerate/platform/environment.h"

namespace accelerate {

namespace env {

/// Detectors to turn off in a simulated run, between commas.
inline constexpr char kSimulateNoDetect[] = "ACCELERATE_SIMULATE_NO_DETECT";
/// What goes wrong in a simulated run: rules of faults, or @ and the path of a file with them.
inline constexpr char kSimulateFaults[] = "ACCELERATE_SIMULATE_FAULTS";
/// Whether time-outs cost their time: "diagnose" or "wait"; and of which library ranks have the
/// manners: "any", "gloo", "nccl" or "mpi".
inline constexpr char kSimulateTimeOuts[] = "ACCELERATE_SIMULATE_TIMEOUTS";
inline constexpr char kSimulateSemantics[] = "ACCELERATE_SIMULATE_SEMANTICS";
/// The file for the log of a simulated run, that of the log which the run follows, and "true" where
/// the run is to be made twice and compared.
inline constexpr char kSimulateLog[] = "ACCELERATE_SIMULATE_LOG";
inline constexpr char kSimulateReplay[] = "ACCELERATE_SIMULATE_REPLAY";
inline constexpr char kSimulateTwice[] = "ACCELERATE_SIMULATE_TWICE";
/// The file for what summary.json of a report has, without the rest of the report.
inline constexpr char kSimulateSummary[] = "ACCELERATE_SIMULATE_SUMMARY";
/// A file into which the run mode writes a byte when it begins, so that the launcher knows whether
/// a program simulated.
inline constexpr char kSimulateBegan[] = "ACCELERATE_SIMULATE_BEGAN";
/// "true": nothing is said about a report.
inline constexpr char kSimulateQuiet[] = "ACCELERATE_SIMULATE_QUIET";
/// For the command that repeats the run: the settings that are not the default ones, as flags; and
/// the variables that no flag stands for, as NAME=VALUE. Both are text of a shell. A program that
/// was started without the launcher has neither.
inline constexpr char kSimulateFlags[] = "ACCELERATE_SIMULATE_FLAGS";
inline constexpr char kSimulateVariables[] = "ACCELERATE_SIMULATE_VARIABLES";

}  // namespace env

/// Whether a variable of this name is one of Accelerate's, or LibTorch's settings of its allocator:
/// those change what a program does although its command stays.
bool is_run_variable(absl::string_view name);

/// Those of `variables` that change what a simulated run does, its times or the last bits of its
/// values, as `NAME=VALUE` words of a shell. The run mode's own variables are left out, and those
/// that have no effect in a simulation.
std::vector<std::string> shaping_variables(const std::map<std::string, std::string>& variables);

/// The words that started this process; "program" where the system does not tell. Any thread.
std::vector<std::string> command_line();

/// The command for the run that `environment` describes, of the program and its arguments.
std::string repeat_line(const Environment& environment, absl::Span<const std::string> program);

}  // namespace accelerate
