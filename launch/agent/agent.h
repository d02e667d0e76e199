/// One machine's part in a run, from the rendezvous to the last report.
///
/// The agent receives its orders (membership_client.h), starts this machine's ranks of a round,
/// supervises them and reports their outcome. If the endpoint is on this machine, it also hosts the
/// server that all agents of the run report to.
/// Threads: the main thread of a process with no other threads.
/// Mirrors: torch.distributed.run's elastic agent; one run may have several rounds.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "launch/agent/agent_options.h"
#include "launch/agent/membership.h"
#include "launch/supervise/rank_group.h"

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

// ---- From a round to the ranks of this machine: command, environment, descriptors, logs. Pure but
// for `claim_log_folder`, so a plan can be printed and compared. Mirrors: the environment that
// torchrun's agent gives its workers.

/// The machine's ranks in order. `store_fd` listens on the round's master port and is kept by rank
/// 0 alone, if that is one of them. `log_folder` is empty or the run's folder.
std::vector<supervise::RankStart> plan_round(const AgentOptions& options, const Round& round,
                                             int store_fd, const std::string& log_folder);

/// Where the logs of a run go, so that no run overwrites those of another. Threads: any.
///
/// The folder for `attempt_N/RANK` of a run: `log_dir/RUN_ID`, or with a number, `log_dir/RUN_ID.2`
/// and so on, where another run has logs. Machines of the run, which have its token in common,
/// share the folder if they share the disk. It is made; `.run` in it is a link to the token.
/// Errors: Unavailable naming the folder and what the system said.
absl::StatusOr<std::string> claim_log_folder(const std::string& log_dir, const std::string& run_id,
                                             const std::string& run_token);

/// `log_dir/RUN_ID`, before any number.
std::string plain_log_folder(const std::string& log_dir, const std::string& run_id);

}  // namespace accelerate::launcher::agent
