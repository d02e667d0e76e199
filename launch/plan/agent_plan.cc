#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "accelerate/base/status.h"
#include "launch/agent/agent_options.h"
#include "launch/plan/launch_plan.h"
#include "launch/settings/endpoint.h"
#include "launch/settings/machine.h"
#include "launch/settings/validate.h"

namespace accelerate::launcher::plan {

using agent::AgentOptions;
using agent::RendezvousKind;
using agent::Streams;
using agent::StreamsByRank;
using settings::Endpoint;
using settings::endpoint_of;
using settings::kUsualPort;
using settings::Settings;
namespace {

// "3", or "0:3,1:1" by rank.
absl::StatusOr<StreamsByRank> parse_streams(const Settings& settings, const char* name) {
  StreamsByRank streams;
  auto read = [](absl::string_view text, Streams* value) {
    int number = 0;
    if (!absl::SimpleAtoi(text, &number) || number < 0 || number > 3) return false;
    *value = static_cast<Streams>(number);
    return true;
  };
  const std::string text = settings.text(name);
  if (read(text, &streams.fallback)) return streams;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> pair = absl::StrSplit(part, ':');
    int rank = 0;
    Streams value = Streams::kNone;
    if (pair.size() != 2 || !absl::SimpleAtoi(pair[0], &rank) || rank < 0 ||
        !read(pair[1], &value)) {
      return invalid(settings.describe(name),
                     ": expected 0 (none), 1 (out), 2 (err) or 3 (both), or these by "
                     "rank of the machine, as in 0:3,1:1");
    }
    streams.by_local_rank[rank] = value;
  }
  return streams;
}

absl::StatusOr<std::set<int>> parse_ranks(const Settings& settings, const char* name) {
  std::set<int> ranks;
  if (!settings.is_set(name)) return ranks;
  for (absl::string_view part : absl::StrSplit(settings.text(name), ',')) {
    int rank = 0;
    if (!absl::SimpleAtoi(part, &rank) || rank < 0) {
      return invalid(settings.describe(name), ": expected ranks, as in 0,1");
    }
    ranks.insert(rank);
  }
  return ranks;
}

absl::StatusOr<std::map<std::string, std::string>> parse_pairs(const Settings& settings) {
  std::map<std::string, std::string> pairs;
  for (absl::string_view part :
       absl::StrSplit(settings.text("rdzv_conf"), ',', absl::SkipEmpty())) {
    const size_t equals = part.find('=');
    if (equals == absl::string_view::npos || equals == 0) {
      return invalid(settings.describe("rdzv_conf"),
                     ": expected key=value pairs, as in join_timeout=60");
    }
    pairs[std::string(part.substr(0, equals))] = std::string(part.substr(equals + 1));
  }
  return pairs;
}

absl::Status plan_many_machines(const PlanInputs& inputs, const Endpoint& endpoint,
                                AgentOptions& options) {
  const Settings& settings = inputs.settings;
  const bool elastic = settings::is_elastic(settings);
  options.rendezvous = elastic ? RendezvousKind::kElastic : RendezvousKind::kStatic;
  if (endpoint.host.empty()) {
    return invalid(
        options.max_nodes, " machines need a rendezvous address; give ",
        elastic ? "--rdzv_endpoint HOST:PORT" : "--main_process_ip, the address of machine 0");
  }
  options.endpoint_host = endpoint.host;
  options.endpoint_port = endpoint.port.value_or(kUsualPort);
  if (options.endpoint_port == 0) {
    return invalid(
        "port 0 means any free one, which several machines cannot agree on; give "
        "--main_process_port a number");
  }
  if (elastic) return absl::OkStatus();
  if (!settings.is_set("machine_rank")) {
    return invalid("which of the ", options.max_nodes,
                   " machines is this? give --machine_rank 0 on ", endpoint.host,
                   ", and 1 and so on elsewhere");
  }
  const int64_t rank = settings.number("machine_rank");
  if (rank >= options.max_nodes) {
    return invalid(settings.describe("machine_rank"), " is not below the number of machines, ",
                   options.max_nodes);
  }
  options.node_rank = static_cast<int>(rank);
  if (rank == 0 && inputs.machine.is_port_in_use(options.endpoint_port)) {
    return absl::UnavailableError(
        absl::StrCat("port ", options.endpoint_port, " of this machine is in use; give another ",
                     "--main_process_port on all machines, or end what uses it"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AgentOptions> plan_agent(const PlanInputs& inputs, std::vector<std::string>* notes) {
  const Settings& settings = inputs.settings;
  AgentOptions options;
  options.command = program_words(inputs);
  options.environment = settings::child_environment(settings, inputs.machine, inputs.environment);
  const settings::NodeRange nodes = settings::node_range(settings);
  options.min_nodes = nodes.min;
  options.max_nodes = nodes.max;
  // num_processes counts the ranks of all machines.
  options.processes_per_node = static_cast<int>(settings.number("num_processes") / nodes.max);
  options.role = settings.text("role");
  options.run_id = settings.text("rdzv_id");
  options.log_dir = settings.text("log_dir");
  options.max_restarts = static_cast<int>(settings.number("max_restarts"));
  options.monitor_interval = absl::Seconds(settings.real("monitor_interval"));
  options.quiet = settings.flag("quiet");
  options.preflight = !settings.flag("no_preflight");
  if (settings.is_set("local_addr")) options.local_addr = settings.text("local_addr");
  if (settings.is_set("kill_grace")) {
    options.kill_grace = absl::Seconds(settings.number("kill_grace"));
  }
  if (settings.flag("multi_gpu") && !settings.flag("cpu")) {
    options.devices_needed = options.processes_per_node;
    const std::string ids = settings.text("gpu_ids");
    // --gpu_ids replaces the variable.
    options.devices_present = ids.empty() || ids == "all"
                                  ? inputs.machine.devices
                                  : settings::count_visible(inputs.machine.installed_devices, ids);
  }

  absl::Status parsed;
  const auto take = [&parsed](auto value, auto& field) {
    parsed.Update(value.status());
    if (value.ok()) field = *std::move(value);
  };
  take(parse_streams(settings, "tee"), options.tee);
  take(parse_streams(settings, "redirects"), options.redirects);
  take(parse_ranks(settings, "local_ranks_filter"), options.local_ranks_filter);
  take(parse_pairs(settings), options.rdzv_conf);
  if (!parsed.ok()) return parsed;

  ACCELERATE_ASSIGN_OR_RETURN(Endpoint endpoint, endpoint_of(settings));
  const bool is_alone =
      settings.flag("standalone") ||
      (options.max_nodes == 1 && !settings.is_set("nnodes") && !settings.is_set("rdzv_endpoint"));
  if (is_alone) {
    options.endpoint_port = free_or_any(endpoint.port.value_or(0), inputs.machine, notes);
  } else {
    ACCELERATE_RETURN_IF_ERROR(plan_many_machines(inputs, endpoint, options));
  }
  ACCELERATE_RETURN_IF_ERROR(agent::check_options(options));
  return options;
}

}  // namespace accelerate::launcher::plan
