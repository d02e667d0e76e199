#include "launch/agent/preflight.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "launch/outcome.h"

namespace accelerate::launch {
namespace {

// As in nvidia0; nvidiactl is not a device that computes.
int numbered_files(const std::filesystem::path& folder, absl::string_view prefix) {
  int count = 0;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    absl::string_view number = name;
    if (!absl::ConsumePrefix(&number, prefix) || number.empty()) continue;
    count += std::all_of(number.begin(), number.end(), absl::ascii_isdigit);
  }
  return count;
}

}  // namespace

absl::Status check_options(const AgentOptions& options) {
  const auto refuse = [](auto&&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(parts...));
  };
  if (options.command.empty()) return refuse("no program to start");
  if (options.processes_per_node < 1 || options.processes_per_node > kMaxProcesses) {
    return refuse("processes per machine: ", options.processes_per_node, " is not between 1 and ",
                  kMaxProcesses);
  }
  if (options.min_nodes < 1 || options.max_nodes < options.min_nodes) {
    return refuse("machines: ", options.min_nodes, ":", options.max_nodes, " is no range");
  }
  if (options.max_restarts < 0) {
    return refuse("--max_restarts ", options.max_restarts, " is negative");
  }
  if (options.monitor_interval < absl::ZeroDuration()) {
    return refuse("--monitor_interval ", absl::FormatDuration(options.monitor_interval),
                  " is negative");
  }
  if (options.rendezvous == RendezvousKind::kStandalone) {
    if (options.max_nodes > 1) return refuse("a standalone run has one machine");
    return absl::OkStatus();
  }
  if (options.endpoint_host.empty() || options.endpoint_port == 0) {
    return refuse(
        "several machines need an endpoint with a port (--main_process_ip and "
        "--main_process_port, or --rdzv_endpoint HOST:PORT)");
  }
  if (options.rendezvous == RendezvousKind::kElastic) return absl::OkStatus();
  if (options.min_nodes != options.max_nodes) {
    return refuse("a static run has a fixed number of machines, not ", options.min_nodes, ":",
                  options.max_nodes);
  }
  const int rank = options.node_rank.value_or(-1);
  if (rank < 0 || rank >= options.max_nodes) {
    return refuse("--machine_rank ", rank, " is not between 0 and ", options.max_nodes - 1);
  }
  return absl::OkStatus();
}

absl::Status check_devices(int needed, int present) {
  if (needed <= present) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      host_name(), " has ", present, present == 1 ? " device" : " devices", " and its ranks need ",
      needed, "; start fewer processes per machine, or use --cpu"));
}

int count_devices(const std::string& dev_folder) {
  int most = 0;
  for (const auto& [folder, prefix] :
       {std::pair("", "nvidia"), {"/dri", "renderD"}, {"", "davinci"}, {"/accel", "accel"}}) {
    most = std::max(most, numbered_files(dev_folder + folder, prefix));
  }
  return most;
}

}  // namespace accelerate::launch
