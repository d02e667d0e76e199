/// Replacing a file that other programs may read or have created.
///
/// Threads: any.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace accelerate::launcher::process {

/// Makes `text` all of the file, as a whole or not at all. Where `path` is a link, the file that it
/// leads to is replaced. `mode` loses what the umask takes away. Devices, pipes and what stands
/// below /dev (/dev/stdout) are written to instead.
/// Errors: Unavailable naming the file and what the system said.
absl::Status replace_file(const std::string& path, absl::string_view text, mode_t mode = 0666);

}  // namespace accelerate::launcher::process
