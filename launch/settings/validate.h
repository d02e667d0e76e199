/// Completes settings and refuses combinations that do not fit together.
///
/// Errors:  InvalidArgument, one line: which settings, why not, and what to do.
/// Threads: pure functions.
/// Mirrors: accelerate commands/launch.py, _validate_launch_command.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "launch/process/process_plan.h"
#include "launch/settings/job.h"
#include "launch/settings/machine.h"
#include "launch/settings/settings.h"

namespace accelerate::launch::settings {

/// How many machines take part: the same number twice unless they may come and go.
struct NodeRange {
  int min = 1;
  int max = 1;
};

/// The range from --nnodes, else from --num_machines. \pre The settings are complete.
NodeRange node_range(const Settings& settings);

/// Whether machines may come and go.
bool is_elastic(const Settings& settings);

/// Fills in what follows from the machine and the job: ranks, machines and where they meet. Then
/// checks everything that does not depend on what is started.
absl::Status complete(Settings& settings, const Machine& machine, const Job& job);

/// The defaults that a run depends on, "num_processes=2", as one note; empty if there is a
/// configuration file or flags set them all.
std::string note_on_defaults(const Settings& settings);

}  // namespace accelerate::launch::settings
