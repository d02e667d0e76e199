#include "launch/plan/launch_plan.h"

#include <optional>
#include <utility>

#include "absl/functional/overload.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/simulated_run.h"
#include "launch/settings/schema.h"
#include "launch/settings/validate.h"

namespace accelerate::launcher::plan {

using agent::AgentOptions;
using agent::RendezvousKind;
using settings::child_environment;
using settings::JobKind;
using settings::Settings;
namespace {

// What the run says about how to repeat it: settings as flags, and variables that no flag stands
// for. `overlay` is what the ranks get.
void describe_settings(const PlanInputs& inputs, process::EnvironmentOverlay& overlay) {
  Settings settings = inputs.settings;
  std::map<std::string, std::string> variables =
      process::environment_of(inputs.environment).variables();
  for (const auto& [name, value] : overlay) {
    // A switch that is on outside and off here.
    if (!value && variables.contains(name)) {
      variables[name] = "false";
    } else {
      variables.erase(name);
    }
  }
  constexpr char kThreads[] = "num_cpu_threads_per_process";
  if (const auto threads = variables.find(env::kOmpNumThreads);
      threads != variables.end() &&
      settings::check_value(settings::setting(kThreads), threads->second).ok()) {
    // One is what a simulated run takes without the variable.
    if (threads->second != "1") {
      settings.set(kThreads, threads->second, settings::Provenance::kEnvironment);
    }
    variables.erase(threads);
  }
  // What stood in the launcher's file contradicts DeepSpeed's file.
  constexpr char kFields[] = "ACCELERATE_CONFIG_DS_FIELDS";
  if (const auto fields = overlay.find(kFields);
      fields != overlay.end() && settings.is_set("deepspeed_config_file")) {
    variables[kFields] = fields->second.value_or("");
  }
  overlay[env::kSimulateFlags] = shell_line(settings::settings_words(settings, inputs.environment));
  overlay[env::kSimulateVariables] = absl::StrJoin(shaping_variables(variables), " ");
}

SimulationPlan plan_simulated(const PlanInputs& inputs) {
  const Settings& settings = inputs.settings;
  SimulationPlan plan;
  plan.process.argv = program_words(inputs);
  process::EnvironmentOverlay& environment = plan.process.environment;
  environment = child_environment(settings, inputs.machine, inputs.environment);
  // The environment's settings of a simulation apply here.
  for (const char* name : env::kSimulation) environment.erase(name);
  describe_settings(inputs, environment);
  environment.merge(process::without_outer_run());
  for (const settings::Setting& row : settings::all_settings()) {
    const std::string variable = row.variable_name();
    if (row.group != settings::Group::kSimulation || variable.empty()) continue;
    if (row.is_boolean()) {
      if (settings.flag(row.name)) environment[variable] = "true";
    } else if (settings.is_set(row.name)) {
      environment[variable] = settings.text(row.name);
    }
  }
  if (settings.flag("quiet")) environment[env::kSimulateQuiet] = "true";
  return plan;
}

// Whether srun is to start the ranks: asked for, or in the shell of a job of several machines.
bool wants_srun(const PlanInputs& inputs) {
  const Settings& settings = inputs.settings;
  if (settings.is_typed("slurm")) return settings.flag("slurm");
  return inputs.job.kind == JobKind::kSlurmShell && inputs.job.nodes > 1 &&
         !settings.is_set("machine_rank") && !settings.is_set("rdzv_endpoint") &&
         settings.provenance("num_machines") == settings::Provenance::kDefault;
}

// Whether srun started one task for each rank, rather than one for each machine.
bool is_one_of_many_tasks(const PlanInputs& inputs) {
  // A task for each machine is to start an agent there.
  return inputs.job.kind == JobKind::kSlurmTask && inputs.job.tasks > 1 &&
         inputs.job.tasks != inputs.job.nodes && !inputs.settings.is_typed("num_processes");
}

// Names in one note the requested features that only this launcher's ranks get.
void note_missing_features(const PlanInputs& inputs, const std::string& who,
                           std::vector<std::string>* notes) {
  std::vector<std::string> missing;
  for (const char* name : {"max_restarts", "log_dir", "tee", "redirects", "local_ranks_filter",
                           "kill_grace", "monitor_interval", "rdzv_conf", "role"}) {
    const char* otherwise = settings::setting(name).default_value;
    if (inputs.settings.is_set(name) &&
        (otherwise == nullptr || inputs.settings.text(name) != otherwise)) {
      missing.push_back(absl::StrCat("--", name));
    }
  }
  if (missing.empty()) return;
  notes->push_back(absl::StrCat(who, ", and ", absl::StrJoin(missing, ", "),
                                missing.size() == 1 ? " has" : " have", " no effect"));
}

std::string streams_text(const agent::StreamsByRank& streams) {
  std::string text = absl::StrCat(static_cast<int>(streams.fallback));
  for (const auto& [rank, value] : streams.by_local_rank) {
    absl::StrAppend(&text, ",", rank, ":", static_cast<int>(value));
  }
  return text;
}

std::string agent_text(const AgentOptions& options) {
  const bool is_standalone = options.rendezvous == RendezvousKind::kStandalone;
  std::string text;
  const auto say = [&text](absl::string_view what, const auto&... is) {
    absl::StrAppend(&text, what, ": ", is..., "\n");
  };
  say("kind", is_standalone ? "ranks of this machine"
              : options.rendezvous == RendezvousKind::kElastic
                  ? "ranks of machines that come and go"
                  : "ranks of several machines");
  say("program", shell_line(options.command));
  say("ranks on this machine", options.processes_per_node);
  if (!is_standalone) {
    say("machines", options.min_nodes,
        options.min_nodes == options.max_nodes ? "" : absl::StrCat(" to ", options.max_nodes));
    if (options.node_rank) say("this machine", *options.node_rank);
    say("run", options.run_id);
  }
  say("rendezvous at", options.endpoint_host, ", port ",
      options.endpoint_port == 0 ? "any" : absl::StrCat(options.endpoint_port));
  if (options.max_restarts > 0) say("restarts", options.max_restarts);
  if (!options.log_dir.empty()) say("logs", options.log_dir);
  const std::string teed = streams_text(options.tee);
  const std::string redirected = streams_text(options.redirects);
  if (teed != "0") say("to console and files", teed);
  if (redirected != "0") say("to files", redirected);
  if (!options.rdzv_conf.empty()) {
    say("rendezvous", absl::StrJoin(options.rdzv_conf, ",", absl::PairFormatter("=")));
  }
  if (options.local_addr) say("others reach it at", *options.local_addr);
  if (!options.local_ranks_filter.empty()) {
    say("local ranks shown", absl::StrJoin(options.local_ranks_filter, ","));
  }
  if (options.kill_grace) say("killed after", absl::FormatDuration(*options.kill_grace));
  if (options.role != "default") say("role", options.role);
  if (!options.preflight) say("checks before the start", "none");
  return absl::StrCat(text, process::to_text(options.environment));
}

std::string command_text(const CommandPlan& plan) {
  std::string text = absl::StrCat("kind: ", plan.kind, "\n");
  for (const auto& words : plan.commands) {
    absl::StrAppend(&text, "command: ", shell_line(words), "\n");
  }
  absl::StrAppend(&text, process::to_text(plan.environment));
  for (const auto& [name, lines] : plan.variable_files) {
    for (const std::string& line : lines) {
      absl::StrAppend(&text, "in ", name, ": ", line, "\n");
    }
  }
  return text;
}

}  // namespace

absl::StatusOr<LaunchPlan> make_plan(const PlanInputs& inputs) {
  const Settings& settings = inputs.settings;
  std::vector<std::string> notes;
  const auto with_notes = [&notes](auto plan) -> absl::StatusOr<LaunchPlan> {
    if (!plan.ok()) return plan.status();
    return LaunchPlan{*std::move(plan), std::move(notes)};
  };
  // The ways to start ranks exclude each other. The first that is asked for wins, and this
  // machine's agent is left for all other runs.
  if (settings.is_set("simulate")) {
    note_missing_features(inputs, "a simulated cluster is one process", &notes);
    return LaunchPlan{plan_simulated(inputs), notes};
  }
  if (settings.is_sagemaker()) {
    return with_notes(plan_sagemaker(inputs, &notes));
  }
  if (settings.flag("tpu") && settings.flag("tpu_use_cluster")) {
    note_missing_features(inputs, "gcloud starts the launchers of the workers", &notes);
    return with_notes(plan_tpu_pod(inputs));
  }
  if (settings.is_set("mpirun_hostfile")) {
    note_missing_features(inputs, "mpirun starts the ranks", &notes);
    return with_notes(plan_mpirun(inputs, &notes));
  }
  if (settings.flag("use_deepspeed") && settings.number("num_machines") > 1 &&
      settings.text("deepspeed_multinode_launcher") != "standard" &&
      inputs.job.kind == JobKind::kNone) {
    note_missing_features(inputs, "deepspeed starts the ranks", &notes);
    return with_notes(plan_deepspeed(inputs));
  }
  if (wants_srun(inputs)) return with_notes(plan_srun(inputs));
  if (is_one_of_many_tasks(inputs)) {
    note_missing_features(inputs, "srun started this rank", &notes);
    TaskPlan plan;
    plan.process.argv = program_words(inputs);
    plan.process.environment = child_environment(settings, inputs.machine, inputs.environment);
    plan.process.environment.merge(process::without_outer_run());
    return LaunchPlan{std::move(plan), notes};
  }
  return with_notes(plan_agent(inputs, &notes));
}

std::string to_text(const LaunchPlan& plan) {
  return std::visit(
      absl::Overload(
          [](const AgentOptions& options) { return agent_text(options); },
          [](const SimulationPlan& plan) {
            return absl::StrCat("kind: simulated cluster\n", to_text(plan.process));
          },
          [](const TaskPlan& plan) {
            return absl::StrCat("kind: a rank that a scheduler started\n", to_text(plan.process));
          },
          [](const CommandPlan& plan) { return command_text(plan); },
          [](const SageMakerPlan& plan) { return absl::StrCat(json_text(plan.job, 2), "\n"); }),
      plan.action);
}

absl::StatusOr<std::string> named_file(const PlanInputs& inputs, const std::string& path) {
  std::optional<std::string> text = inputs.machine.read_file(path);
  if (!text) return invalid(path, ": cannot be read");
  return *std::move(text);
}

std::vector<std::string> program_words(const PlanInputs& inputs) {
  if (!inputs.settings.flag("module")) return inputs.command;
  const std::string function = inputs.settings.text("main_training_function");
  std::vector<std::string> words = {inputs.module_loader, function.empty() ? "main" : function};
  words.insert(words.end(), inputs.command.begin(), inputs.command.end());
  return words;
}

uint16_t free_or_any(uint16_t port, const settings::Machine& machine,
                     std::vector<std::string>* notes) {
  if (port == 0 || !machine.is_port_in_use(port)) return port;
  notes->push_back(absl::StrCat(
      "port ", port, " is in use; the rendezvous of this machine's ranks takes a free one"));
  return 0;
}

}  // namespace accelerate::launcher::plan
