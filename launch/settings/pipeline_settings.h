/// The pipeline that settings describe: whether there is such a schedule, and what it looks like.
///
/// Errors:  InvalidArgument, one line: which setting, why not, and what to do.
/// Threads: pure functions.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "launch/settings/settings.h"

namespace accelerate::launcher::settings {

/// Checks the settings of a pipeline. \pre Each is in its range.
absl::Status check_pipeline(const Settings& settings);

/// The schedule along the time (accelerate/pipeline/schedule_text.h), where a backward pass takes
/// twice the time of a forward pass and messages take none, with the share of the time in which
/// ranks wait, and what each keeps for backward passes. Ends with a newline; empty where ranks have
/// no stages.
absl::StatusOr<std::string> pipeline_text(const Settings& settings);

}  // namespace accelerate::launcher::settings
