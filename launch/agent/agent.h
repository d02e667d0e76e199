/// One machine's part in a run, from the rendezvous to the last report.
///
/// The agent receives its orders (membership_link.h), starts this machine's ranks of a round,
/// supervises them and reports their outcome. If the endpoint is on this
/// machine, it also hosts the server that all agents of the run report to. Threads: the main thread
/// of a process with no other threads. Mirrors: torch.distributed.run's elastic agent; one run may
/// have several rounds.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "launch/agent/agent_options.h"
#include "launch/agent/membership_client.h"
#include "launch/agent/membership_server.h"

namespace accelerate::launch::agent {

/// Runs the program and returns the exit code: 0 if every rank of the last round exited with 0;
/// that of the first rank that failed, on whichever machine; 128 + signal after one that ends it;
/// 141 if the output was closed; 1 if the rendezvous failed or machines lost their connection. The
/// reason is on standard error. `environment` holds `NAME=value` words, as `environ` does. The
/// standard streams have to be open.
///
/// Errors, about which nothing was told: NotFound or PermissionDenied if the program is not there
/// or
///         cannot be executed; InvalidArgument for options that do not fit together; any other if
///         this machine lacks something.
absl::StatusOr<int> run_agent(const AgentOptions& options,
                              absl::Span<const std::string> environment);

struct Rendezvous {
  /// Only where the run's endpoint is.
  std::unique_ptr<MembershipServer> server;
  std::unique_ptr<MembershipLink> link;
  /// How long the server waits for the others to receive the end.
  absl::Duration close_timeout = absl::ZeroDuration();
};

/// Finds the endpoint, listens there if it is this machine's, and begins to connect otherwise. The
/// options are checked (preflight.h).
/// Errors: NotFound if the endpoint's name does not resolve, within 5 s; Unavailable if this
/// machine
///         should listen and the port is taken or the address not its own; InvalidArgument for
///         `rdzv_conf`.
absl::StatusOr<Rendezvous> join_rendezvous(const AgentOptions& options);

}  // namespace accelerate::launch::agent
