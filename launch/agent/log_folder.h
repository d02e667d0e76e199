/// Where the logs of a run go, so that no run overwrites those of another.
/// Threads: any.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "launch/agent/membership.h"

namespace accelerate::launch {

/// The folder for `attempt_N/RANK` of this machine from `round` on: `log_dir/RUN_ID`, or with a
/// number, `log_dir/RUN_ID.2` and so on, where an earlier run left logs of the same rank. Machines
/// that share a disk share the folder. It is made.
/// Errors: Unavailable naming the folder and what the system said.
absl::StatusOr<std::string> claim_log_folder(const std::string& log_dir, const std::string& run_id,
                                             const Round& round);

/// A new folder among the temporary ones.
/// Errors: as above.
absl::StatusOr<std::string> temporary_log_dir();

/// `log_dir/RUN_ID`, before any number.
std::string plain_log_folder(const std::string& log_dir, const std::string& run_id);

}  // namespace accelerate::launch
