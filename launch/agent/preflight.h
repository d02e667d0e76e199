/// The checks before anything starts that need only this machine. What concerns several machines
/// (their versions, clocks and reachability) is checked when they meet (handshake.h,
/// membership_client.h).
#pragma once

#include "absl/status/status.h"
#include "launch/agent/agent_options.h"

namespace accelerate::launch::agent {

/// Whether the options make sense together. Errors: InvalidArgument.
absl::Status check_options(const AgentOptions& options);

/// Whether there are as many devices as are needed. Errors: FailedPrecondition.
absl::Status check_devices(int needed, int present);

}  // namespace accelerate::launch::agent
