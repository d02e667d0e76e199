/// The command line of this process, for commands that its user can repeat.
///
/// Threads: any.
#pragma once

#include <string>
#include <vector>

namespace accelerate {

/// The words that started this process; "program" where the system does not tell.
std::vector<std::string> command_line();

}  // namespace accelerate
