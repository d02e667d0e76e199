/// Finding the program to start, before anything is started.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace accelerate::launch::process {

/// PATH of an environment of `NAME=value` words; what execvp takes where there is none.
std::string search_path_of(absl::Span<const std::string> environment);

/// The file that `name` stands for: itself if it has a slash, else the first executable file of
/// that name in the directories of `search_path` (colon separated, an empty one is the current
/// directory). Same rules as execvp, but the reason of a failure is kept.
/// Errors: NotFound if there is no such file; PermissionDenied if there is one that cannot be
///         executed.
absl::StatusOr<std::string> find_program(absl::string_view name, absl::string_view search_path);

}  // namespace accelerate::launch::process
