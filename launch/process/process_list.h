/// Lists of running processes, from /proc.
///
/// Processes come and go while the list is made: it is complete only for those that were there
/// before and still are.
/// Errors: none; what cannot be read is not listed. Threads: any.
#pragma once

#include <sys/types.h>

#include <vector>

#include "absl/strings/string_view.h"

namespace accelerate::launch::process {

/// The processes whose parent is `parent`.
std::vector<pid_t> children_of(pid_t parent);

/// The processes that were started with `text` somewhere in their environment, as far as this user
/// may know it.
std::vector<pid_t> started_with(absl::string_view text);

}  // namespace accelerate::launch::process
