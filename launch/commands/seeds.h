/// `launch --simulate SPEC --seeds FIRST:END`: the run, repeated with each seed.
///
/// Threads: the main thread.
#pragma once

#include "launch/commands/commands.h"
#include "launch/plan/launch_plan.h"
#include "launch/settings/validate.h"

namespace accelerate::launcher::commands {

struct SeedSweep {
  plan::SimulationPlan plan;
  settings::SeedRange seeds;
  /// Only failures are told.
  bool is_quiet = false;
};

/// One run after the other, each with its output collected; a run reads from nothing. Writes a line
/// per seed, for a run that failed its last lines, and at the end the failures with the command
/// that repeats the first one. SIGINT, from Ctrl-C or to this process alone, goes to the run of
/// that seed and ends the sweep; a second one kills the run with all its processes. Returns the
/// exit code of the first run that failed, else 0; 130 after SIGINT.
int run_seeds(const SeedSweep& sweep, Invocation& invocation);

}  // namespace accelerate::launcher::commands
