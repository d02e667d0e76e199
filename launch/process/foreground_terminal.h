/// Lending the terminal to a rank that runs alone.
///
/// A rank is a process group of its own, and only the terminal's foreground group may read from it
/// and gets its Ctrl-C. A single rank that shares the launcher's terminal is therefore made the
/// foreground group, as a shell does with a job.
///
/// The terminal is the one on standard input. SIGTTOU must be blocked when it changes hands.
#pragma once

#include <sys/types.h>

namespace accelerate::launch::process {

/// Whether standard input is a terminal and the launcher's group is in its foreground.
bool owns_terminal();

/// Makes `group` the foreground group if the launcher's group is.
void lend_terminal(pid_t group);

/// Makes the launcher's group the foreground group if `group` is.
void take_terminal_back(pid_t group);

}  // namespace accelerate::launch::process
