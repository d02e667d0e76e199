/// A file of `NAME=value` lines that other programs write to as well.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace accelerate::launch::commands {

/// Makes `lines` the only ones of their variables in the file; other lines stay. The file is
/// replaced as a whole or not at all, and only its owner can read it.
/// Errors: Unavailable naming the file.
absl::Status update_variable_file(const std::string& path, const std::vector<std::string>& lines);

}  // namespace accelerate::launch::commands
