#include "launch/settings/machine.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "accelerate/base/json_text.h"
#include "accelerate/base/status.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/slurm.h"
#include "launch/process/process_plan.h"

namespace accelerate::launcher::settings {
namespace {

// Where no port is agreed on otherwise.
constexpr uint16_t kUsualPort = 29500;

absl::StatusOr<int> count(absl::Span<const std::string> environment, const char* name,
                          int fallback) {
  const std::string text = process::environment_value(environment, name);
  if (text.empty()) return fallback;
  int number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= 0) return number;
  return absl::InvalidArgumentError(
      absl::StrCat("variable ", name, ": expected a number from 0, not \"", text, "\""));
}

// SLURM_GPUS_ON_NODE is a number, or one after the kind as in "h100:8".
int slurm_devices(absl::Span<const std::string> words) {
  const std::string text = process::environment_value(words, "SLURM_GPUS_ON_NODE");
  int number = 0;
  return absl::SimpleAtoi(text.substr(text.rfind(':') + 1), &number) ? std::max(number, 0) : 0;
}

absl::StatusOr<Job> slurm_job(absl::Span<const std::string> words) {
  const Environment environment = process::environment_of(words);
  Job job;
  const SlurmRole role = slurm_role(environment);
  if (role == SlurmRole::kNone) return job;
  job.kind = role == SlurmRole::kTask ? JobKind::kSlurmTask : JobKind::kSlurmShell;
  const bool is_task = job.kind == JobKind::kSlurmTask;
  for (const char* name : {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"}) {
    if (!is_task && name == absl::string_view("SLURM_STEP_NUM_NODES")) continue;
    ACCELERATE_ASSIGN_OR_RETURN(const int nodes, count(words, name, 0));
    if (nodes > 0) {
      job.nodes = nodes;
      break;
    }
  }
  ACCELERATE_ASSIGN_OR_RETURN(job.tasks,
                              count(words, is_task ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", 0));
  if (is_task && job.tasks == 0) job.tasks = count(words, "SLURM_NTASKS", 0).value_or(0);
  if (is_task) {
    ACCELERATE_ASSIGN_OR_RETURN(job.node_rank, count(words, "SLURM_NODEID", 0));
  }
  job.devices_per_node = slurm_devices(words);
  ACCELERATE_ASSIGN_OR_RETURN(std::optional<std::string> host, slurm_first_host(environment));
  job.first_host = host.value_or("");
  job.port = static_cast<uint16_t>(slurm_port(environment).value_or(kUsualPort));
  return job;
}

// The hosts of a job and the one that this is, by `hosts_from` and `self_from`.
absl::StatusOr<Job> sagemaker_job(const nlohmann::json& hosts, absl::string_view hosts_from,
                                  const std::string& self, absl::string_view self_from,
                                  absl::Span<const std::string> words) {
  if (!hosts.is_array() || hosts.empty() || !hosts[0].is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat(hosts_from, ": expected a JSON list of hosts, not ", json_text(hosts)));
  }
  const auto place = std::find(hosts.begin(), hosts.end(), self);
  if (place == hosts.end()) {
    return absl::InvalidArgumentError(absl::StrCat(self_from, ": \"", self,
                                                   "\" is none of the hosts of ", hosts_from, ", ",
                                                   json_text(hosts)));
  }
  ACCELERATE_ASSIGN_OR_RETURN(const int devices, count(words, "SM_NUM_GPUS", 0));
  Job job;
  job.kind = JobKind::kSageMaker;
  job.nodes = static_cast<int>(hosts.size());
  job.node_rank = static_cast<int>(place - hosts.begin());
  job.devices_per_node = devices;
  job.first_host = hosts[0];
  job.port = kUsualPort;
  return job;
}

// A job whose container starts the launcher itself, and not SageMaker's training toolkit, which
// sets the variables.
absl::StatusOr<Job> job_of_hosts_file(const std::string& path,
                                      absl::Span<const std::string> words) {
  std::ifstream file(path);
  const nlohmann::json resources = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!resources.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected a JSON object with \"hosts\" and \"current_host\""));
  }
  const nlohmann::json self = resources.value("current_host", nlohmann::json());
  absl::StatusOr<Job> job = sagemaker_job(
      resources.value("hosts", nlohmann::json()), absl::StrCat(path, ": hosts"),
      self.is_string() ? self.get<std::string>() : "", absl::StrCat(path, ": current_host"), words);
  if (job.ok()) job->hosts_file = path;
  return job;
}

}  // namespace

absl::StatusOr<Job> find_job(absl::Span<const std::string> environment, const std::string& root) {
  if (const auto hosts = process::find_in_environment(environment, "SM_HOSTS")) {
    const nlohmann::json list = nlohmann::json::parse(*hosts, nullptr, /*allow_exceptions=*/false);
    return sagemaker_job(list.is_discarded() ? nlohmann::json(*hosts) : list, "variable SM_HOSTS",
                         process::environment_value(environment, "SM_CURRENT_HOST"),
                         "variable SM_CURRENT_HOST", environment);
  }
  const std::filesystem::path hosts_file =
      std::filesystem::path(root) / "opt/ml/input/config/resourceconfig.json";
  std::error_code ignored;
  if (std::filesystem::exists(hosts_file, ignored)) {
    return job_of_hosts_file(hosts_file.string(), environment);
  }
  if (process::find_in_environment(environment, "SLURM_JOB_ID")) return slurm_job(environment);
  return Job();
}

}  // namespace accelerate::launcher::settings
