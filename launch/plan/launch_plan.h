/// The plan of a launch: one of a few actions, which can be printed and carried out.
///
/// Pure: settings, machine and job decide, nothing is started or written. What needs another tool
/// (mpirun, srun, gcloud, deepspeed) is the command line of that tool; how ranks are looked after
/// on this machine is the agent's business (launch/agent).
/// Errors:  InvalidArgument or Unavailable, one line: what does not fit, and what to do.
/// Threads: pure functions.
/// Mirrors: accelerate commands/launch.py, the launchers; utils/launch.py, the prepare functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "launch/agent/agent_options.h"
#include "launch/process/process_plan.h"
#include "launch/settings/machine.h"
#include "launch/settings/settings.h"

namespace accelerate::launcher::plan {

/// Ranks on a simulated cluster: the program itself, once.
struct SimulationPlan {
  process::ProcessPlan process;
};

/// This process is a task that a scheduler started for one rank: it becomes the program.
struct TaskPlan {
  process::ProcessPlan process;
};

/// Another tool starts the ranks.
struct CommandPlan {
  /// "mpirun", "srun", "deepspeed", "tpu pod".
  std::string kind;
  /// The same program with its arguments, once or several times at the same time.
  std::vector<std::vector<std::string>> commands;
  process::EnvironmentOverlay environment;
  /// Lines to have in a file by its name; others of the same variables are replaced.
  std::map<std::string, std::vector<std::string>> variable_files;
};

/// A job for `aws sagemaker create-training-job --cli-input-json`.
struct SageMakerPlan {
  /// Its TrainingJobName is what all jobs of the file have in common.
  nlohmann::ordered_json job;
  /// The program aws with the file's --region and --profile.
  std::vector<std::string> aws;
  /// The AWS keys from the command line, for that program alone: a job does not get them.
  process::EnvironmentOverlay environment;
};

struct LaunchPlan {
  std::variant<agent::AgentOptions, SimulationPlan, TaskPlan, CommandPlan, SageMakerPlan> action;
  /// Notes for the user, a line each.
  std::vector<std::string> notes;
};

/// The program that loads a shared object and calls a function in it.
inline constexpr char kModuleLoader[] = "accelerate-module";

/// The inputs of all kinds of plans.
struct PlanInputs {
  /// Complete (validate.h).
  const settings::Settings& settings;
  const settings::Machine& machine;
  const settings::Job& job;
  /// The program as typed, then its arguments.
  const std::vector<std::string>& command;
  /// `NAME=value` words of the launcher.
  absl::Span<const std::string> environment;
  /// How the launcher was called, for plans that call it elsewhere: options only.
  const std::vector<std::string>& typed_options;
  /// Where that program is; by its name alone it is looked for in PATH.
  std::string module_loader = kModuleLoader;
  /// This program's file, which srun starts on all machines of a job: the first `accelerate` of
  /// their PATH may be another program, or none.
  std::string executable = "accelerate";
};

absl::StatusOr<LaunchPlan> make_plan(const PlanInputs& inputs);

/// For --dry-run; ends with a newline.
std::string to_text(const LaunchPlan& plan);

/// The command, or with --module what loads it: the loader, the function's name, the shared object
/// and its arguments.
std::vector<std::string> program_words(const PlanInputs& inputs);

/// The text of a file that a setting names. Errors: InvalidArgument naming it.
absl::StatusOr<std::string> named_file(const PlanInputs& inputs, const std::string& path);

/// `--learning-rate 0.1 --name x` is {"learning_rate": 0.1, "name": "x"}. Whole numbers are
/// integers, however written; True and False are booleans.
/// Errors: InvalidArgument for an argument without name or value, and for a name that occurs twice.
/// Mirrors: accelerate utils/launch.py, _convert_nargs_to_dict.
absl::StatusOr<nlohmann::ordered_json> sagemaker_hyperparameters(
    absl::Span<const std::string> arguments);

/// The port of a run on one machine: 0, any free one, in place of one that is in use, with a note.
uint16_t free_or_any(uint16_t port, const settings::Machine& machine,
                     std::vector<std::string>* notes);

// DeepSpeed's file of machines, and the filters on it.
//
// A line names a machine and its slots, `worker-1 slots=4`; what follows is passed over, and so are
// lines that begin with `#`. A filter names machines, and slots of them: `worker-1@worker-2:0,2`.
// Errors:  InvalidArgument naming the line or the part of the filter.
// Mirrors: the hostfile of deepspeed/launcher/runner.py.

/// Machines in the order of the file, with the numbers of their slots.
using Hosts = std::vector<std::pair<std::string, std::vector<int>>>;

absl::StatusOr<Hosts> parse_hostfile(absl::string_view text);

/// The hosts that `include` names, or all but those that `exclude` names; at most one of them may
/// be there. A machine of which no slot is left is left out.
absl::StatusOr<Hosts> filter_hosts(const Hosts& hosts, absl::string_view include,
                                   absl::string_view exclude);

// The kinds. Notes are added to.
absl::StatusOr<agent::AgentOptions> plan_agent(const PlanInputs& inputs,
                                               std::vector<std::string>* notes);
absl::StatusOr<CommandPlan> plan_mpirun(const PlanInputs& inputs, std::vector<std::string>* notes);
absl::StatusOr<CommandPlan> plan_srun(const PlanInputs& inputs);
absl::StatusOr<CommandPlan> plan_deepspeed(const PlanInputs& inputs);
absl::StatusOr<CommandPlan> plan_tpu_pod(const PlanInputs& inputs);
absl::StatusOr<SageMakerPlan> plan_sagemaker(const PlanInputs& inputs,
                                             std::vector<std::string>* notes);

}  // namespace accelerate::launcher::plan
