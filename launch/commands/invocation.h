/// What most commands do with their invocation: read a variable, say what is wrong.
///
/// Threads: the main thread.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launch/commands/command.h"

namespace accelerate::launch {

/// A variable's value; the first one counts, as for getenv. An empty one is a value.
std::optional<std::string> variable(const Invocation& invocation, absl::string_view name);

/// Writes `accelerate COMMAND: message`, and returns the exit code.
int fail(Invocation& invocation, absl::string_view command, const absl::Status& status,
         int exit_code = kExitLauncherFailed);

/// Flushes standard output: an output that nobody could read is a failure.
int finish(Invocation& invocation);

}  // namespace accelerate::launch
