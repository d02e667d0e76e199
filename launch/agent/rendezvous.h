/// Rendezvous: this machine joins its run alone, as the host of the membership server, or as a
/// client.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "launch/agent/agent_options.h"
#include "launch/agent/membership_link.h"
#include "launch/agent/membership_server.h"

namespace accelerate::launch::agent {

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
