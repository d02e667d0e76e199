/// The list that the program's main, the help texts and the shell completion go by.
///
/// Threads: constant data.
#pragma once

#include "absl/types/span.h"
#include "launch/commands/command.h"

namespace accelerate::launch::commands {

/// In the order of `accelerate --help`.
absl::Span<const Command> all_commands();

}  // namespace accelerate::launch::commands
