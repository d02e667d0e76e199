#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "accelerate/platform/environment.h"
#include "launch/plan/endpoint.h"
#include "launch/plan/launch_plan.h"
#include "launch/settings/child_environment.h"

namespace accelerate::launch::plan {

using settings::Provenance;
using settings::Settings;
namespace {

// What only a launcher on each machine can do.
bool needs_launchers(const Settings& settings) {
  return settings.number("max_restarts") > 0 || settings.is_set("log_dir") ||
         settings.text("tee") != "0" || settings.text("redirects") != "0" ||
         settings.text("rdzv_backend") != "static" || settings.is_set("local_ranks_filter") ||
         settings.is_set("kill_grace") || settings.flag("enable_cpu_affinity");
}

}  // namespace

absl::StatusOr<CommandPlan> plan_srun(const PlanInputs& inputs) {
  const Settings& settings = inputs.settings;
  if (inputs.job.kind != settings::JobKind::kSlurmShell) {
    return absl::InvalidArgumentError(
        "--slurm: not inside the script or shell of a Slurm job (SLURM_JOB_ID is not set); start "
        "it "
        "with sbatch or salloc");
  }
  const int64_t nodes = settings.provenance("num_machines") == Provenance::kDefault
                            ? inputs.job.nodes
                            : settings.number("num_machines");
  if (nodes > inputs.job.nodes) {
    return absl::InvalidArgumentError(absl::StrCat(
        settings.describe("num_machines"), " is more than the job has, ", inputs.job.nodes));
  }
  int64_t processes = settings.number("num_processes");
  // Counted for one machine.
  if (settings.provenance("num_processes") == Provenance::kMachine &&
      settings.number("num_machines") == 1) {
    processes *= nodes;
  }
  if (processes % nodes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(processes, " ranks cannot be divided evenly over ", nodes,
                     " machines; give a --num_processes that ", nodes, " divides"));
  }

  CommandPlan plan;
  plan.kind = "srun";
  plan.tool = "srun";
  plan.environment = process::without_outer_run();
  std::vector<std::string> words = {"srun", absl::StrCat("--nodes=", nodes)};
  if (needs_launchers(settings)) {
    words.insert(words.end(), {absl::StrCat("--ntasks=", nodes), "--ntasks-per-node=1",
                               "--kill-on-bad-exit=1", "accelerate", "launch"});
    for (const std::string& option : inputs.typed_options) {
      const bool is_ours = absl::StartsWith(option, "--num_processes=") ||
                           absl::StartsWith(option, "--num_machines=") || option == "--slurm" ||
                           option == "--dry_run";
      if (!is_ours) words.push_back(option);
    }
    words.push_back(absl::StrCat("--num_processes=", processes));
    words.push_back("--");
    words.insert(words.end(), inputs.command.begin(), inputs.command.end());
  } else {
    words.insert(words.end(), {absl::StrCat("--ntasks=", processes),
                               absl::StrCat("--ntasks-per-node=", processes / nodes),
                               "--kill-on-bad-exit=1", "--label"});
    plan.environment.merge(
        settings::child_environment(settings, inputs.machine, inputs.environment));
    absl::StatusOr<Endpoint> endpoint = endpoint_of(settings);
    if (!endpoint.ok()) return endpoint.status();
    if (!endpoint->host.empty()) plan.environment[env::kMasterAddr] = endpoint->host;
    if (endpoint->port.value_or(0) != 0) {
      plan.environment[env::kMasterPort] = absl::StrCat(*endpoint->port);
    }
    for (std::string& word : program_words(settings, inputs.command)) {
      words.push_back(std::move(word));
    }
  }
  plan.commands.push_back(std::move(words));
  return plan;
}

}  // namespace accelerate::launch::plan
