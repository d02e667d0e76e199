/// The variables that pass settings on to ranks.
///
/// The variables for ranks and addresses are set by the program that starts a rank (the agent,
/// mpirun, srun).
/// Errors:  none; the settings were checked.
/// Threads: pure functions.
/// Mirrors: accelerate utils/launch.py, the prepare functions.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "launch/process/process_plan.h"
#include "launch/settings/machine.h"
#include "launch/settings/settings.h"

namespace accelerate::launch::settings {

/// \pre `complete` succeeded. `environment` holds `NAME=value` words of the launcher. Requests for
/// a simulation that an outer run made are removed.
process::EnvironmentOverlay child_environment(const Settings& settings, const Machine& machine,
                                              absl::Span<const std::string> environment);

}  // namespace accelerate::launch::settings
