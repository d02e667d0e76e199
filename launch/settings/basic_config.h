/// `accelerate config default` for programs: a configuration for the machine of this process.
///
/// Programs link //launch/settings, with CMake Accelerate::launch_settings.
/// Errors:  std::invalid_argument, which says what to do.
/// Threads: one at a time for a file.
/// Mirrors: accelerate commands/config/default.py, write_basic_config.
/// Differs: returns whether the file was written, and counts devices of every kind without being
///          asked (`use_xpu`).
#pragma once

#include <string_view>

namespace accelerate {

/// Writes a file that `accelerate launch` reads: all devices of this machine, else its CPU.
/// `save_location` is YAML, or JSON if it ends in .json; empty: the file that `accelerate config`
/// writes. Returns false if there is a file already, which is left as it is. Local; one rank of a
/// job calls it. Errors: a precision that there is not, and a file that cannot be written.
bool write_basic_config(std::string_view mixed_precision = "no",
                        std::string_view save_location = "");

}  // namespace accelerate
