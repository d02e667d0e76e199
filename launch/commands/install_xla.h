/// `accelerate install_xla`: which device plug-ins this machine could load, and how to get one.
///
/// Each is loaded in a child process; nothing is installed.
/// Mirrors: accelerate utils/torch_xla.py, install_xla, in what it is asked for.
/// Differs: it installs nothing: a C++ program's LibTorch is chosen when it is built.
#pragma once

#include "launch/commands/command.h"

namespace accelerate::launch::commands {

extern const Command kInstallXla;

}  // namespace accelerate::launch::commands
