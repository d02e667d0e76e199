/// `accelerate simulate SPEC [OPTIONS] PROGRAM [ARGS...]`: launch on a simulated cluster.
///
/// `expand_arguments` makes `launch --simulate SPEC ...` of it; this is its help, and what it says
/// when SPEC is missing.
#pragma once

#include "launch/commands/command.h"

namespace accelerate::launch::commands {

extern const Command kSimulate;

}  // namespace accelerate::launch::commands
