/// `accelerate env`: what a report of a bug needs to say about the machine.
///
/// Mirrors: accelerate commands/env.py.
/// Differs: compiler, build and MPI stand for Python and NumPy; what is not there is named.
#pragma once

#include "launch/commands/command.h"

namespace accelerate::launch::commands {

extern const Command kEnv;

}  // namespace accelerate::launch::commands
