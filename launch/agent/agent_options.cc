#include "launch/agent/agent_options.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "accelerate/base/message_text.h"
#include "accelerate/base/status.h"
#include "launch/supervise/rank_group.h"

namespace accelerate::launcher::agent {
namespace {

absl::Status check_local_rank(const AgentOptions& options, const char* flag, int rank) {
  if (rank >= 0 && rank < options.processes_per_node) return absl::OkStatus();
  return invalid(flag, ": this machine has no local rank ", rank, "; its ranks are 0 to ",
                 options.processes_per_node - 1);
}

absl::Status check_local_ranks(const AgentOptions& options) {
  for (int rank : options.local_ranks_filter) {
    ACCELERATE_RETURN_IF_ERROR(check_local_rank(options, "--local_ranks_filter", rank));
  }
  for (const auto& [flag, streams] :
       {std::pair("--redirects", &options.redirects), {"--tee", &options.tee}}) {
    for (const auto& [rank, stream] : streams->by_local_rank) {
      ACCELERATE_RETURN_IF_ERROR(check_local_rank(options, flag, rank));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status check_options(const AgentOptions& options) {
  if (options.command.empty()) return invalid("no program to start");
  if (options.processes_per_node < 1 || options.processes_per_node > process::kMaxProcesses) {
    return invalid("processes per machine: ", options.processes_per_node, " is not between 1 and ",
                   process::kMaxProcesses);
  }
  if (options.min_nodes < 1 || options.max_nodes < options.min_nodes) {
    return invalid("machines: ", options.min_nodes, ":", options.max_nodes,
                   " is not a range MIN:MAX");
  }
  if (options.max_restarts < 0) {
    return invalid("--max_restarts ", options.max_restarts, " is negative");
  }
  if (options.monitor_interval < absl::ZeroDuration()) {
    return invalid("--monitor_interval ", absl::FormatDuration(options.monitor_interval),
                   " is negative");
  }
  ACCELERATE_RETURN_IF_ERROR(check_local_ranks(options));
  ACCELERATE_RETURN_IF_ERROR(rendezvous_timing(options.rdzv_conf).status());
  if (options.rendezvous == RendezvousKind::kStandalone) {
    if (options.max_nodes > 1) return invalid("a standalone run has one machine");
    return absl::OkStatus();
  }
  if (options.endpoint_host.empty() || options.endpoint_port == 0) {
    return invalid(
        "several machines need an endpoint with a port (--main_process_ip and "
        "--main_process_port, or --rdzv_endpoint HOST:PORT)");
  }
  if (options.rendezvous == RendezvousKind::kElastic) return absl::OkStatus();
  if (options.min_nodes != options.max_nodes) {
    return invalid("a static run has a fixed number of machines, not ", options.min_nodes, ":",
                   options.max_nodes);
  }
  const int rank = options.node_rank.value_or(-1);
  if (rank < 0 || rank >= options.max_nodes) {
    return invalid("--machine_rank ", rank, " is not between 0 and ", options.max_nodes - 1);
  }
  return absl::OkStatus();
}

absl::Status check_devices(int needed, int present) {
  if (needed <= present) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      supervise::host_name(), " has ", present, present == 1 ? " device" : " devices",
      " and its ranks need ", needed, "; start fewer processes per machine, or use --cpu"));
}

absl::StatusOr<RendezvousTiming> rendezvous_timing(
    const std::map<std::string, std::string>& pairs) {
  RendezvousTiming timing;
  const std::map<std::string, absl::Duration*> durations = {
      {"timeout", &timing.join_timeout},
      {"join_timeout", &timing.join_timeout},
      {"last_call_timeout", &timing.last_call_timeout},
      {"close_timeout", &timing.close_timeout},
      {"read_timeout", &timing.read_timeout},
      {"keep_alive_interval", &timing.keep_alive_interval}};
  for (const auto& [key, value] : pairs) {
    const auto bad = [&](const char* wanted) {
      return invalid("--rdzv_conf ", key, "=", value, " is not ", wanted);
    };
    if (const auto found = durations.find(key); found != durations.end()) {
      double seconds = 0;
      // Four months; what is longer is a typing error, and infinity no time at all.
      constexpr double kMost = 1e7;
      if (!absl::SimpleAtod(value, &seconds) || !(seconds >= 0) || seconds > kMost) {
        return bad("a number of seconds");
      }
      *found->second = absl::Seconds(seconds);
    } else if (key == "keep_alive_max_attempt") {
      if (!absl::SimpleAtoi(value, &timing.keep_alive_max_attempt) ||
          timing.keep_alive_max_attempt < 1) {
        return bad("a count of at least 1");
      }
    } else if (key == "is_host") {
      bool is_host = false;
      if (!absl::SimpleAtob(value, &is_host)) return bad("true or false");
      timing.is_host = is_host;
    } else if (key == "rank") {
      return invalid("--rdzv_conf rank=", value,
                     ": --machine_rank says the number of this machine");
    } else if (key == "store_type") {
      if (value != "tcp") return bad("\"tcp\", the only store there is");
    } else {
      std::vector<std::string> keys = {"keep_alive_max_attempt", "is_host"};
      for (const auto& [name, duration] : durations) keys.push_back(name);
      std::ranges::sort(keys);
      return invalid("--rdzv_conf: unknown key ", key, did_you_mean(key, keys),
                     "; known keys: ", absl::StrJoin(keys, ", "));
    }
  }
  if (timing.keep_alive_interval <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("--rdzv_conf keep_alive_interval has to be above 0");
  }
  return timing;
}

}  // namespace accelerate::launcher::agent
