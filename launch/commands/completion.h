/// `accelerate completion bash|zsh|fish`: a script that completes commands, options and values.
///
///     source <(accelerate completion bash)
/// The script is made of the list of commands and of what each declares; the program that a launch
/// starts, and all that follows it, complete as files.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "launch/commands/command.h"

namespace accelerate::launch::commands {

/// Errors: InvalidArgument for an unknown shell.
absl::StatusOr<std::string> completion_script(absl::string_view shell,
                                              absl::Span<const Command> commands);

extern const Command kCompletion;

}  // namespace accelerate::launch::commands
