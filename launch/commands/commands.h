/// The list of commands for the program's main, the help texts and the shell completion.
///
/// Threads: constant data.
#pragma once

#include "absl/types/span.h"
#include "launch/commands/command.h"

namespace accelerate::launch::commands {

// Each in the file of its name.
extern const Command kConfig;
extern const Command kSimulate;
extern const Command kTest;
extern const Command kEnv;
extern const Command kEstimateMemory;
extern const Command kMergeWeights;
extern const Command kTpuConfig;
extern const Command kInstallXla;

/// In the order of `accelerate --help`.
absl::Span<const Command> all_commands();

}  // namespace accelerate::launch::commands
