/// One machine's part in a run, from the rendezvous to the last report.
///
/// The agent receives its orders (membership_client.h), starts this machine's ranks of a round,
/// supervises them and reports their outcome. If the endpoint is on this machine, it also hosts the
/// server that all agents of the run report to.
/// Threads: the main thread of a process with no other threads.
/// Mirrors: torch.distributed.run's elastic agent; one run may have several rounds.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "launch/agent/agent_options.h"

namespace accelerate::launcher::agent {

/// Runs the program and returns the exit code: 0 if every rank of the last round exited with 0;
/// that of the first rank that failed, on whichever machine; 128 + signal after one that ends it;
/// 141 if the output was closed; 1 if the rendezvous failed or machines lost their connection. The
/// reason is on standard error. `environment` holds `NAME=value` words, as `environ` does. The
/// standard streams have to be open.
///
/// Errors, which are not printed: NotFound or PermissionDenied if the program is not there or
///         cannot be executed; InvalidArgument for options that do not fit together; any other if
///         this machine lacks something.
absl::StatusOr<int> run_agent(const AgentOptions& options,
                              absl::Span<const std::string> environment);

}  // namespace accelerate::launcher::agent
