/// What most commands do with their invocation: say what is wrong, and end.
///
/// Threads: the main thread.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "launch/commands/command.h"

namespace accelerate::launch::commands {

/// Writes `accelerate COMMAND: message`, and returns the exit code.
int fail(Invocation& invocation, absl::string_view command, const absl::Status& status,
         int exit_code = kExitLauncherFailed);

/// Flushes standard output: an output that nobody could read is a failure.
int finish(Invocation& invocation);

}  // namespace accelerate::launch::commands
