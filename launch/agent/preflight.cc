#include "launch/agent/preflight.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "launch/agent/rendezvous_timing.h"
#include "launch/supervise/outcome.h"

namespace accelerate::launch::agent {
namespace {

template <typename... Parts>
absl::Status refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status check_local_rank(const AgentOptions& options, const char* flag, int rank) {
  if (rank >= 0 && rank < options.processes_per_node) return absl::OkStatus();
  return refuse(flag, ": this machine has no local rank ", rank, "; its ranks are 0 to ",
                options.processes_per_node - 1);
}

absl::Status check_local_ranks(const AgentOptions& options) {
  for (int rank : options.local_ranks_filter) {
    absl::Status ok = check_local_rank(options, "--local_ranks_filter", rank);
    if (!ok.ok()) return ok;
  }
  for (const auto& [flag, streams] :
       {std::pair("--redirects", &options.redirects), {"--tee", &options.tee}}) {
    for (const auto& [rank, stream] : streams->by_local_rank) {
      if (absl::Status ok = check_local_rank(options, flag, rank); !ok.ok()) return ok;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status check_options(const AgentOptions& options) {
  if (options.command.empty()) return refuse("no program to start");
  if (options.processes_per_node < 1 || options.processes_per_node > process::kMaxProcesses) {
    return refuse("processes per machine: ", options.processes_per_node, " is not between 1 and ",
                  process::kMaxProcesses);
  }
  if (options.min_nodes < 1 || options.max_nodes < options.min_nodes) {
    return refuse("machines: ", options.min_nodes, ":", options.max_nodes,
                  " is not a range MIN:MAX");
  }
  if (options.max_restarts < 0) {
    return refuse("--max_restarts ", options.max_restarts, " is negative");
  }
  if (options.monitor_interval < absl::ZeroDuration()) {
    return refuse("--monitor_interval ", absl::FormatDuration(options.monitor_interval),
                  " is negative");
  }
  if (absl::Status ok = check_local_ranks(options); !ok.ok()) return ok;
  if (absl::Status ok = rendezvous_timing(options.rdzv_conf).status(); !ok.ok()) return ok;
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
      supervise::host_name(), " has ", present, present == 1 ? " device" : " devices",
      " and its ranks need ", needed, "; start fewer processes per machine, or use --cpu"));
}

}  // namespace accelerate::launch::agent
