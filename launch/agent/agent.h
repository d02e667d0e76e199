/// One machine's part in a run, from the first look around to the last words.
///
/// The agent finds out what a round is (membership_link.h), starts this machine's ranks of it,
/// looks after them, reports how they fare and does as it is ordered. If the endpoint is on this
/// machine, it also hosts the server that all agents of the run report to. Threads: the main thread
/// of a process with no other threads. Mirrors: torch.distributed.run's elastic agent; one run may
/// have several rounds.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "launch/agent/agent_options.h"

namespace accelerate::launch::agent {

/// Runs the program and returns the exit code: 0 if every rank of the last round exited with 0;
/// that of the first rank that failed, on whichever machine; 128 + signal after one that ends it;
/// 141 if nobody reads the output any more; 1 if the machines could not meet or lost one another.
/// Why is told on standard error. `environment` holds `NAME=value` words, as `environ` does. The
/// standard streams have to be open.
///
/// Errors, about which nothing was told: NotFound or PermissionDenied if the program is not there
/// or
///         cannot be executed; InvalidArgument for options that do not fit together; any other if
///         this machine lacks something.
absl::StatusOr<int> run_agent(const AgentOptions& options,
                              absl::Span<const std::string> environment);

}  // namespace accelerate::launch::agent
