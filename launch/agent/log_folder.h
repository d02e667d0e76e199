/// Where the logs of a run go, so that no run overwrites those of another.
/// Threads: any.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace accelerate::launch::agent {

/// The folder for `attempt_N/RANK` of a run: `log_dir/RUN_ID`, or with a number, `log_dir/RUN_ID.2`
/// and so on, where another run has logs. Machines of the run, which have its token in common,
/// share the folder if they share the disk. It is made; `.run` in it is a link to the token.
/// Errors: Unavailable naming the folder and what the system said.
absl::StatusOr<std::string> claim_log_folder(const std::string& log_dir, const std::string& run_id,
                                             const std::string& run_token);

/// `log_dir/RUN_ID`, before any number.
std::string plain_log_folder(const std::string& log_dir, const std::string& run_id);

}  // namespace accelerate::launch::agent
