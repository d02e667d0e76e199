#include "launch/plan/launch_plan.h"

#include <utility>

#include "absl/functional/overload.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "accelerate/runtime/env.h"
#include "launch/plan/program_words.h"
#include "launch/settings/child_environment.h"
#include "launch/settings/validate.h"

namespace accelerate::launch {
namespace {

SimulationPlan plan_simulated(const PlanInputs& inputs) {
  const Settings& settings = inputs.settings;
  SimulatedRun run;
  run.simulate = settings.text("simulate");
  if (settings.is_set("simulate_seed")) run.simulate_seed = settings.text("simulate_seed");
  if (settings.is_set("report")) run.report = settings.text("report");
  run.command = program_words(settings, inputs.command);
  run.environment = child_environment(settings, inputs.machine, inputs.environment);
  // What the environment says about a simulation holds here.
  run.environment.erase(env::kSimulate);
  run.environment.erase(env::kSimulateSeed);
  return {plan_simulation(run)};
}

TaskPlan plan_task(const PlanInputs& inputs) {
  TaskPlan plan;
  plan.process.argv = program_words(inputs.settings, inputs.command);
  plan.process.environment = child_environment(inputs.settings, inputs.machine, inputs.environment);
  plan.process.environment.merge(without_outer_run());
  return plan;
}

// Whether srun is to start the ranks: asked for, or in the shell of a job of several machines.
bool wants_srun(const PlanInputs& inputs) {
  const Settings& settings = inputs.settings;
  if (settings.is_typed("slurm")) return settings.flag("slurm");
  return inputs.job.kind == JobKind::kSlurmShell && inputs.job.nodes > 1 &&
         !settings.is_set("machine_rank") && !settings.is_set("rdzv_endpoint") &&
         settings.provenance("num_machines") == Provenance::kDefault;
}

// Whether srun started one task for each rank, rather than one for each machine.
bool is_one_of_many_tasks(const PlanInputs& inputs) {
  return inputs.job.kind == JobKind::kSlurmTask && inputs.job.tasks > 1 &&
         inputs.job.tasks != inputs.job.nodes && !inputs.settings.is_typed("num_processes");
}

template <typename Plan>
absl::StatusOr<LaunchPlan> with_notes(absl::StatusOr<Plan> plan, std::vector<std::string> notes) {
  if (!plan.ok()) return plan.status();
  return LaunchPlan{*std::move(plan), std::move(notes)};
}

void append_environment(const EnvironmentOverlay& environment, std::string* text) {
  for (const auto& [name, value] : environment) {
    if (value) absl::StrAppend(text, "set ", name, "=", *value, "\n");
  }
  for (const auto& [name, value] : environment) {
    if (!value) absl::StrAppend(text, "unset ", name, "\n");
  }
}

std::string streams_text(const StreamsByRank& streams) {
  std::string text = absl::StrCat(static_cast<int>(streams.fallback));
  for (const auto& [rank, value] : streams.by_local_rank) {
    absl::StrAppend(&text, ",", rank, ":", static_cast<int>(value));
  }
  return text;
}

std::string agent_text(const AgentOptions& options) {
  const bool is_elastic = options.rendezvous == RendezvousKind::kElastic;
  std::string text =
      absl::StrCat("kind: ",
                   options.rendezvous == RendezvousKind::kStandalone ? "ranks of this machine"
                   : is_elastic ? "ranks of machines that come and go"
                                : "ranks of several machines",
                   "\nprogram: ", shell_line(options.command),
                   "\nranks on this machine: ", options.processes_per_node, "\n");
  if (options.rendezvous != RendezvousKind::kStandalone) {
    absl::StrAppend(
        &text, "machines: ", options.min_nodes,
        options.min_nodes == options.max_nodes ? "" : absl::StrCat(" to ", options.max_nodes),
        "\n");
    if (options.node_rank) absl::StrAppend(&text, "this machine: ", *options.node_rank, "\n");
    absl::StrAppend(&text, "run: ", options.run_id, "\n");
  }
  absl::StrAppend(&text, "meeting at: ", options.endpoint_host, ", port ",
                  options.endpoint_port == 0 ? "any" : absl::StrCat(options.endpoint_port), "\n");
  if (options.max_restarts > 0) absl::StrAppend(&text, "restarts: ", options.max_restarts, "\n");
  if (!options.log_dir.empty()) absl::StrAppend(&text, "logs: ", options.log_dir, "\n");
  if (streams_text(options.tee) != "0") {
    absl::StrAppend(&text, "to console and files: ", streams_text(options.tee), "\n");
  }
  if (streams_text(options.redirects) != "0") {
    absl::StrAppend(&text, "to files: ", streams_text(options.redirects), "\n");
  }
  append_environment(options.environment, &text);
  return text;
}

std::string command_text(const CommandPlan& plan) {
  std::string text = absl::StrCat("kind: ", plan.kind, "\n");
  for (const auto& words : plan.commands) {
    absl::StrAppend(&text, "command: ", shell_line(words), "\n");
  }
  append_environment(plan.environment, &text);
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
  if (settings.is_set("simulate")) return LaunchPlan{plan_simulated(inputs), notes};
  if (settings.is_sagemaker()) {
    absl::StatusOr<SageMakerPlan> plan = plan_sagemaker(inputs, &notes);
    return with_notes(std::move(plan), std::move(notes));
  }
  if (settings.flag("tpu") && settings.flag("tpu_use_cluster")) {
    return with_notes(plan_tpu_pod(inputs), notes);
  }
  if (settings.is_set("mpirun_hostfile")) return with_notes(plan_mpirun(inputs), notes);
  if (settings.flag("use_deepspeed") && settings.number("num_machines") > 1 &&
      settings.text("deepspeed_multinode_launcher") != "standard" &&
      inputs.job.kind == JobKind::kNone) {
    return with_notes(plan_deepspeed(inputs), notes);
  }
  if (wants_srun(inputs)) return with_notes(plan_srun(inputs), notes);
  if (is_one_of_many_tasks(inputs)) return LaunchPlan{plan_task(inputs), notes};
  absl::StatusOr<AgentOptions> plan = plan_agent(inputs, &notes);
  return with_notes(std::move(plan), std::move(notes));
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
          [](const SageMakerPlan& plan) { return absl::StrCat(plan.job.dump(2), "\n"); }),
      plan.action);
}

std::string shell_line(absl::Span<const std::string> words) {
  constexpr char kPlain[] =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  return absl::StrJoin(words, " ", [&](std::string* out, const std::string& word) {
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
      absl::StrAppend(out, word);
    } else {
      absl::StrAppend(out, "'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
    }
  });
}

}  // namespace accelerate::launch
