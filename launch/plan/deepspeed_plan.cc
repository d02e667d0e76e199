#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "launch/plan/endpoint.h"
#include "launch/plan/hostfile.h"
#include "launch/plan/launch_plan.h"
#include "launch/settings/child_environment.h"

namespace accelerate::launch::plan {

using settings::Settings;
namespace {

// Whether the hostfile's text and the filters make sense.
absl::Status check_hosts(const Settings& settings, const std::string& text) {
  const absl::StatusOr<Hosts> hosts = parse_hostfile(text);
  if (!hosts.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(settings.text("deepspeed_hostfile"), ": ", hosts.status().message()));
  }
  return filter_hosts(*hosts, settings.text("deepspeed_inclusion_filter"),
                      settings.text("deepspeed_exclusion_filter"))
      .status();
}

// Lines that DeepSpeed can read: no empty values, nothing that a shell would take apart.
std::vector<std::string> variable_lines(const process::EnvironmentOverlay& environment) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : environment) {
    if (!value || value->empty()) continue;
    const std::string line = absl::StrCat(name, "=", *value);
    if (line.find_first_of(";\n<> ") == std::string::npos) lines.push_back(line);
  }
  return lines;
}

}  // namespace

absl::StatusOr<CommandPlan> plan_deepspeed(const PlanInputs& inputs) {
  const Settings& settings = inputs.settings;
  if (!settings.is_set("deepspeed_hostfile")) {
    return absl::InvalidArgumentError(
        "several machines under DeepSpeed's launcher need --deepspeed_hostfile; without one, start "
        "accelerate on each machine with --deepspeed_multinode_launcher standard");
  }
  // One that is not there is told by deepspeed itself, which may look elsewhere.
  if (const auto text = inputs.machine.read_file(settings.text("deepspeed_hostfile"))) {
    if (absl::Status ok = check_hosts(settings, *text); !ok.ok()) return ok;
  }
  const std::string launcher = settings.is_set("deepspeed_multinode_launcher")
                                   ? settings.text("deepspeed_multinode_launcher")
                                   : "pdsh";
  std::vector<std::string> words = {"deepspeed", "--hostfile", settings.text("deepspeed_hostfile")};
  if (launcher == "nossh") {
    if (!settings.is_set("machine_rank")) {
      return absl::InvalidArgumentError(
          "the launcher nossh is started on every machine; give --machine_rank, 0 on the first");
    }
    words.insert(words.end(),
                 {"--node_rank", absl::StrCat(settings.number("machine_rank")), "--no_ssh"});
  } else {
    words.insert(words.end(), {"--no_local_rank", "--launcher", launcher});
  }
  if (settings.is_set("deepspeed_exclusion_filter")) {
    words.insert(words.end(), {"--exclude", settings.text("deepspeed_exclusion_filter")});
  } else if (settings.is_set("deepspeed_inclusion_filter")) {
    words.insert(words.end(), {"--include", settings.text("deepspeed_inclusion_filter")});
  } else {
    words.insert(words.end(), {"--num_gpus", absl::StrCat(settings.number("num_processes") /
                                                          settings.number("num_machines"))});
  }
  absl::StatusOr<Endpoint> endpoint = endpoint_of(settings);
  if (!endpoint.ok()) return endpoint.status();
  if (!endpoint->host.empty()) words.insert(words.end(), {"--master_addr", endpoint->host});
  uint16_t port = endpoint->port.value_or(kUsualPort);
  if (port == 0) port = inputs.machine.find_free_port();
  words.insert(words.end(), {"--master_port", absl::StrCat(port), "--no_python"});
  for (std::string& word : program_words(settings, inputs.command)) {
    words.push_back(std::move(word));
  }

  CommandPlan plan;
  plan.kind = "deepspeed";
  plan.tool = "deepspeed";
  plan.commands.push_back(std::move(words));
  plan.environment = settings::child_environment(settings, inputs.machine, inputs.environment);
  plan.variable_files[".deepspeed_env"] = variable_lines(plan.environment);
  plan.environment.merge(process::without_outer_run());
  return plan;
}

}  // namespace accelerate::launch::plan
