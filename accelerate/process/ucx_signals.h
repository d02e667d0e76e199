/// SIGHUP in programs that link Open MPI.
///
/// Open MPI, which Debian's LibTorch links, brings UCX along. UCX takes SIGHUP for its debugger as
/// soon as it is loaded, before main, in programs that never use MPI as well: a terminal that is
/// closed would not end them, and `nohup` would not keep it from starting the debugger.
#pragma once

#include "accelerate/platform/environment.h"

namespace accelerate::internal {

/// Gives SIGHUP the action that it had before UCX was loaded. Has no effect if UCX is not loaded,
/// if the program has a handler of its own, or if UCX_DEBUG_SIGNO says which signal UCX takes.
/// Local. Process-wide; threads: any, but not while another one changes SIGHUP's action.
void restore_sighup_action(const Environment& environment);

}  // namespace accelerate::internal
