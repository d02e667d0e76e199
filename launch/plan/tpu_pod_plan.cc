#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/message_text.h"
#include "launch/plan/launch_plan.h"
#include "launch/settings/child_environment.h"

namespace accelerate::launch::plan {

using settings::Settings;
namespace {

// What a worker runs: the variables, then the launcher for the cores of that worker.
absl::StatusOr<std::string> worker_line(const PlanInputs& inputs) {
  const Settings& settings = inputs.settings;
  std::vector<std::string> words;
  if (settings.flag("tpu_use_sudo")) words.push_back("sudo");
  words.insert(words.end(), {"env", "ACCELERATE_IN_TPU_POD=1"});
  if (settings.text("mixed_precision") == "bf16") {
    words.push_back(settings.flag("downcast_bf16") ? "XLA_DOWNCAST_BF16=1" : "XLA_USE_BF16=1");
  }
  if (settings.flag("debug")) words.push_back("ACCELERATE_DEBUG_MODE=true");
  for (const std::string& pair : settings.texts("env")) {
    if (pair.find('=') == std::string::npos || pair[0] == '=') {
      return absl::InvalidArgumentError(absl::StrCat("--env ", pair, " is not NAME=VALUE"));
    }
    words.push_back(pair);
  }
  words.insert(words.end(), {"accelerate-launch", "--tpu", "--no_tpu_cluster", "--num_machines",
                             "1", "--mixed_precision", "no", "--dynamo_backend", "no",
                             "--num_processes", absl::StrCat(settings.number("num_processes"))});
  if (settings.flag("module")) {
    words.push_back("--module");
    if (settings.is_set("main_training_function")) {
      words.insert(words.end(),
                   {"--main_training_function", settings.text("main_training_function")});
    }
  }
  words.push_back("--");
  words.insert(words.end(), inputs.command.begin(), inputs.command.end());

  std::vector<std::string> steps = settings.texts("commands");
  if (settings.is_set("command_file")) {
    const absl::StatusOr<std::string> text = named_file(inputs, settings.text("command_file"));
    if (!text.ok()) return text.status();
    for (absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipWhitespace())) {
      steps.emplace_back(line);
    }
  }
  steps.push_back(shell_line(words));
  return absl::StrJoin(steps, "; ");
}

}  // namespace

absl::StatusOr<CommandPlan> plan_tpu_pod(const PlanInputs& inputs) {
  const Settings& settings = inputs.settings;
  const std::vector<std::string> machines = settings.texts("vm");
  if (machines.empty() && !settings.is_set("tpu_name")) {
    return absl::InvalidArgumentError(
        "which TPU pod? set tpu_name and tpu_zone in the configuration file, or give --vm for each "
        "worker");
  }
  absl::StatusOr<std::string> line = worker_line(inputs);
  if (!line.ok()) return line.status();
  std::vector<std::string> zone;
  if (settings.is_set("tpu_zone")) zone = {"--zone", settings.text("tpu_zone")};

  CommandPlan plan;
  plan.kind = "tpu pod";
  plan.tool = "gcloud";
  auto add = [&](std::vector<std::string> words, const std::vector<std::string>& last) {
    words.insert(words.end(), zone.begin(), zone.end());
    words.insert(words.end(), {"--command", *line});
    words.insert(words.end(), last.begin(), last.end());
    plan.commands.push_back(std::move(words));
  };
  for (const std::string& machine : machines) add({"gcloud", "compute", "ssh", machine}, {});
  if (machines.empty()) {
    add({"gcloud", "compute", "tpus", "tpu-vm", "ssh", settings.text("tpu_name")},
        {"--worker", "all"});
  }
  return plan;
}

}  // namespace accelerate::launch::plan
