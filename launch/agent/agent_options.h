/// The agent's input: one machine's part in a run, with every setting resolved; and the checks
/// before anything starts that need only this machine. What concerns several machines (their
/// versions, clocks and reachability) is checked at the rendezvous (message.h,
/// membership_client.h).
///
/// Settings (flags, configuration files, environment) become this in `launch/plan`; the agent reads
/// no settings and no configuration.
/// Mirrors: torch.distributed.run's options; the names are the same.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launch/process/process_plan.h"

namespace accelerate::launcher::agent {

/// How machines find one another.
enum class RendezvousKind {
  kStandalone,  ///< one machine: no rendezvous
  kStatic,      ///< every machine knows its rank; machine 0 is at `endpoint`
  kElastic,     ///< a membership server at `endpoint` gives ranks; between min and max machines
};

/// Which of a rank's streams; torchrun's 0, 1, 2, 3.
enum class Streams { kNone = 0, kOut = 1, kErr = 2, kBoth = 3 };

/// Streams by local rank, where `fallback` holds for all that are not named.
struct StreamsByRank {
  Streams fallback = Streams::kNone;
  std::map<int, Streams> by_local_rank;
};

struct AgentOptions {
  /// The program as typed, then its arguments.
  std::vector<std::string> command;
  /// The variables that every rank of this machine gets on top of the inherited environment; the
  /// agent itself sets those of the torchrun contract.
  process::EnvironmentOverlay environment;

  int processes_per_node = 1;
  int min_nodes = 1;
  int max_nodes = 1;
  RendezvousKind rendezvous = RendezvousKind::kStandalone;
  /// Static: 0-based. Unset otherwise.
  std::optional<int> node_rank;
  /// Where machine 0's store (static) or the membership server (elastic) is: a name or an address;
  /// an IPv6 address without brackets. Port 0 (standalone only): any free one.
  std::string endpoint_host = "127.0.0.1";
  uint16_t endpoint_port = 0;
  /// This machine's address as others reach it; unset: found by the route to the endpoint.
  std::optional<std::string> local_addr;
  /// Machines of different runs refuse one another.
  std::string run_id = "none";
  /// torchrun's key=value pairs: join_timeout, last_call_timeout, close_timeout, read_timeout,
  /// keep_alive_interval, keep_alive_max_attempt (seconds, counts), is_host.
  std::map<std::string, std::string> rdzv_conf;

  /// How often a run is started anew after a rank failed or the membership changed.
  int max_restarts = 0;
  absl::Duration monitor_interval = absl::Milliseconds(100);
  std::string role = "default";

  /// Folder for `RUN_ID/attempt_N/RANK/{stdout,stderr}.log`, or `RUN_ID.2/…` where an earlier run
  /// left some; empty: no files.
  std::string log_dir;
  /// The streams that go to files only, and those that go to both. Needs `log_dir`, or a temporary
  /// one is made.
  StreamsByRank redirects;
  StreamsByRank tee;
  /// The only local ranks whose lines reach the console; empty: all.
  std::set<int> local_ranks_filter;

  /// Prints nothing about how ranks ended; only the exit code shows it.
  bool quiet = false;
  /// From asking ranks to stop to killing them. Unset: the supervisor's defaults.
  std::optional<absl::Duration> kill_grace;
  /// Checks before anything starts (name resolution, port, versions, clock, devices).
  bool preflight = true;
  /// Devices that the ranks of this machine need; 0: none.
  int devices_needed = 0;
  /// Devices that this machine has.
  int devices_present = 0;
};

/// Whether the options make sense together. Errors: InvalidArgument.
absl::Status check_options(const AgentOptions& options);

/// Checks that the machine has enough devices. Errors: FailedPrecondition.
absl::Status check_devices(int needed, int present);

/// How long machines wait for one another, from torchrun's `--rdzv_conf`.
struct RendezvousTiming {
  absl::Duration join_timeout = absl::Seconds(600);
  absl::Duration last_call_timeout = absl::Seconds(30);
  /// How long the hosting machine waits for the others to receive the end.
  absl::Duration close_timeout = absl::Seconds(30);
  /// How long the server's answer to the handshake may take; a membership server greets at once.
  absl::Duration read_timeout = absl::Seconds(4);
  absl::Duration keep_alive_interval = absl::Seconds(5);
  /// A machine that sends nothing for this many intervals counts as lost.
  int keep_alive_max_attempt = 3;
  /// Whether this machine runs the server; unset: if the endpoint is its own.
  std::optional<bool> is_host;

  absl::Duration liveness_timeout() const { return keep_alive_interval * keep_alive_max_attempt; }
};

/// Reads the pairs. `timeout` is the static back-end's word for join_timeout, and `store_type` may
/// only be what there is, `tcp`. Errors: InvalidArgument naming the key and the value, or a key
/// that there is not; also for `rank`, in the place of which torchrun itself puts the machine's
/// rank.
absl::StatusOr<RendezvousTiming> rendezvous_timing(const std::map<std::string, std::string>& pairs);

}  // namespace accelerate::launcher::agent
