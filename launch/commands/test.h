/// `accelerate test`: starts the self-test program with the configuration that a training would
/// have.
///
/// The program is `accelerate-self-test` beside this one, or what `ACCELERATE_SELF_TEST` names.
/// Mirrors: accelerate commands/test.py.
#pragma once

#include "launch/commands/command.h"

namespace accelerate::launch::commands {

extern const Command kTest;

}  // namespace accelerate::launch::commands
