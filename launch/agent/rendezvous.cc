#include "launch/agent/rendezvous.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "launch/agent/handshake.h"
#include "launch/agent/membership_client.h"
#include "launch/agent/rendezvous_timing.h"
#include "launch/process/socket_address.h"
#include "launch/process/version.h"
#include "launch/supervise/outcome.h"

namespace accelerate::launch::agent {
namespace {

constexpr absl::Duration kResolveTimeout = absl::Seconds(4);

std::string new_token() {
  return absl::StrCat(supervise::host_name(), ".", getpid(), ".", absl::ToUnixNanos(absl::Now()));
}

MembershipRules rules_of(const AgentOptions& options, const RendezvousTiming& timing) {
  return {.min_nodes = options.min_nodes,
          .max_nodes = options.max_nodes,
          .fixed_ranks = options.rendezvous == RendezvousKind::kStatic,
          .max_restarts = options.max_restarts,
          .join_timeout = timing.join_timeout,
          .last_call_timeout = timing.last_call_timeout,
          .gather_time = options.monitor_interval,
          .run_token = new_token()};
}

Handshake handshake_of(const AgentOptions& options) {
  return {.version = process::kVersion,
          .run_id = options.run_id,
          .min_nodes = options.min_nodes,
          .max_nodes = options.max_nodes,
          .max_restarts = options.max_restarts,
          .clock = absl::Now(),
          .machine = {.host = supervise::host_name(),
                      .address = options.local_addr.value_or(""),
                      .processes = options.processes_per_node,
                      .node_rank = options.node_rank}};
}

bool is_mine(const std::vector<process::SocketAddress>& addresses) {
  return std::any_of(addresses.begin(), addresses.end(), process::is_own_address);
}

// Digits mean that address alone. A name may stand for the loopback address here and for another
// one elsewhere, so its machine listens everywhere; so does one behind an address translation.
absl::StatusOr<process::ListeningSocket> listen_at(
    const AgentOptions& options, const std::vector<process::SocketAddress>& addresses) {
  const bool exact = process::SocketAddress::from_text(options.endpoint_host).has_value() ||
                     options.endpoint_host == "localhost";
  if (exact && process::is_own_address(addresses[0]))
    return process::listen_on(addresses[0], options.endpoint_port);
  return process::listen_everywhere(options.endpoint_port);
}

absl::StatusOr<Rendezvous> host_run(const AgentOptions& options, MembershipClientOptions client,
                                    process::ListeningSocket socket) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot open a socket: ", std::strerror(errno)));
  }
  UniqueFd server_end(ends[0]);
  UniqueFd client_end(ends[1]);
  Handshake own = handshake_of(options);
  // The others found this machine by it.
  if (own.machine.address.empty()) own.machine.address = options.endpoint_host;
  Rendezvous rendezvous = {.close_timeout = client.timing.close_timeout};
  rendezvous.server = std::make_unique<MembershipServer>(
      std::move(socket), rules_of(options, client.timing), own, client.timing.liveness_timeout());
  rendezvous.server->adopt(std::move(server_end));
  rendezvous.link =
      std::make_unique<MembershipClient>(std::move(client), own, std::move(client_end));
  return rendezvous;
}

}  // namespace

absl::StatusOr<Rendezvous> join_rendezvous(const AgentOptions& options) {
  absl::StatusOr<RendezvousTiming> timing = rendezvous_timing(options.rdzv_conf);
  if (!timing.ok()) return timing.status();
  if (options.rendezvous == RendezvousKind::kStandalone) {
    Rendezvous rendezvous;
    rendezvous.link = std::make_unique<LocalLink>(rules_of(options, *timing),
                                                  Member{.host = supervise::host_name(),
                                                         .address = "127.0.0.1",
                                                         .processes = options.processes_per_node});
    return rendezvous;
  }
  absl::StatusOr<std::vector<process::SocketAddress>> addresses =
      process::resolve(options.endpoint_host, kResolveTimeout);
  if (!addresses.ok()) return addresses.status();
  MembershipClientOptions client = {.endpoint_host = options.endpoint_host,
                                    .endpoint_port = options.endpoint_port,
                                    .addresses = *addresses,
                                    .timing = *timing,
                                    .waits_for_unreachable = !options.preflight};
  const bool is_static = options.rendezvous == RendezvousKind::kStatic;
  const bool must_host = timing->is_host.value_or(is_static && options.node_rank == 0);
  if (must_host || (!is_static && !timing->is_host && is_mine(*addresses))) {
    absl::StatusOr<process::ListeningSocket> socket = listen_at(options, *addresses);
    if (socket.ok()) return host_run(options, std::move(client), *std::move(socket));
    // Another agent of this machine may have been first.
    if (must_host || !absl::IsAlreadyExists(socket.status())) {
      return absl::UnavailableError(
          absl::StrCat(socket.status().message(), "; choose another port on all machines"));
    }
  }
  Rendezvous rendezvous;
  rendezvous.link = std::make_unique<MembershipClient>(std::move(client), handshake_of(options));
  return rendezvous;
}

}  // namespace accelerate::launch::agent
