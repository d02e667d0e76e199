/// Runs the ranks of this machine.
#pragma once

#include <string>

#include "launch/agent/agent_options.h"
#include "launch/commands/command.h"

namespace accelerate::launch {

/// `program` is the file to execute. Returns the launcher's exit code.
int run_local(Invocation& invocation, const AgentOptions& options, const std::string& program);

}  // namespace accelerate::launch
