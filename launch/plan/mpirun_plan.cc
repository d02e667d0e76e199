#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "accelerate/platform/environment.h"
#include "launch/plan/endpoint.h"
#include "launch/plan/launch_plan.h"
#include "launch/settings/child_environment.h"

namespace accelerate::launch::plan {
namespace {

// The first machine that an mpirun hostfile names; both flavours begin a line with the name.
std::string first_host(const std::string& text) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = line.substr(0, line.find('#'));
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t\r:"), absl::SkipEmpty());
    if (!words.empty()) return std::string(words[0]);
  }
  return "";
}

}  // namespace

absl::StatusOr<CommandPlan> plan_mpirun(const PlanInputs& inputs, std::vector<std::string>* notes) {
  const settings::Settings& settings = inputs.settings;
  const std::optional<settings::MpiProgram> mpi = inputs.machine.find_mpi();
  if (!mpi) {
    return absl::NotFoundError(
        "neither mpirun nor mpiexec is in PATH; install Open MPI, Intel MPI or MVAPICH, or leave "
        "--mpirun_hostfile out");
  }
  const std::string hostfile = settings.text("mpirun_hostfile");
  const int64_t machines = settings.number("num_machines");
  const int64_t processes = settings.number("num_processes");
  absl::StatusOr<Endpoint> endpoint = endpoint_of(settings);
  if (!endpoint.ok()) return endpoint.status();
  if (endpoint->host.empty() && machines > 1) {
    endpoint->host = first_host(inputs.machine.read_file(hostfile).value_or(""));
    if (endpoint->host.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(machines, " machines need a place to meet, and ", hostfile,
                       " names none; give --main_process_ip"));
    }
  }

  CommandPlan plan;
  plan.kind = "mpirun";
  plan.tool = mpi->name;
  plan.environment = settings::child_environment(settings, inputs.machine, inputs.environment);
  plan.environment.merge(process::without_outer_run());
  if (processes > 1) {
    uint16_t port = endpoint->port.value_or(machines == 1 ? 0 : kUsualPort);
    if (machines == 1) port = free_or_any(port, inputs.machine, notes);
    if (port == 0) port = inputs.machine.find_free_port();
    plan.environment[env::kMasterAddr] = endpoint->host.empty() ? "127.0.0.1" : endpoint->host;
    plan.environment[env::kMasterPort] = absl::StrCat(port);
  }

  const std::string per_machine = absl::StrCat(processes / machines);
  std::vector<std::string> words;
  if (mpi->flavour == settings::MpiFlavour::kOpenMpi) {
    words = {mpi->name,
             "--hostfile",
             hostfile,
             "--npernode",
             per_machine,
             "-n",
             absl::StrCat(processes),
             "--bind-to",
             "socket"};
    // Open MPI hands nothing on to other machines unless it is told to.
    for (const auto& [name, value] : plan.environment) {
      if (value) words.insert(words.end(), {"-x", name});
    }
  } else {
    words = {mpi->name, "-f", hostfile, "-ppn", per_machine, "-n", absl::StrCat(processes)};
  }
  for (std::string& word : program_words(settings, inputs.command)) {
    words.push_back(std::move(word));
  }
  plan.commands.push_back(std::move(words));
  return plan;
}

}  // namespace accelerate::launch::plan
