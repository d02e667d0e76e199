/// From a round to the ranks of this machine: command, environment, descriptors, logs.
///
/// Pure: it starts nothing and asks the machine nothing, so a plan can be printed and compared.
/// Mirrors: the environment that torchrun's agent gives its workers.
#pragma once

#include <string>
#include <vector>

#include "launch/agent/agent_options.h"
#include "launch/agent/membership.h"
#include "launch/supervise/rank_group.h"

namespace accelerate::launch::agent {

/// The machine's ranks in order. `store_fd` listens on the round's master port and is kept by rank
/// 0 alone, if that is one of them. `log_folder` is empty or the run's folder.
std::vector<supervise::RankStart> plan_round(const AgentOptions& options, const Round& round,
                                             int store_fd, const std::string& log_folder);

/// Whether streams are asked to go to files.
bool wants_logs(const AgentOptions& options);

}  // namespace accelerate::launch::agent
