/// `accelerate simulate --sweep "2x8:h100;4x8:h100" PROGRAM`: the program on each of several
/// simulated clusters, a row each. `accelerate simulate --fit 16x8:h100 PROGRAM`: the smallest part
/// of that cluster on which it fits.
///
/// Threads: the main thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "launch/commands/commands.h"
#include "launch/plan/launch_plan.h"

namespace accelerate::launcher::commands {

struct ClusterSweep {
  /// Between semicolons; empty for a search.
  std::string clusters;
  /// The largest cluster of a search, as NODESxRANKS:DEVICE; empty for a sweep.
  std::string largest;
  /// What a run on that cluster is. Errors: InvalidArgument.
  std::function<absl::StatusOr<plan::SimulationPlan>(const std::string& cluster)> plan;
  int64_t tokens_per_sample = 0;  ///< 0: unknown
  std::string csv;                ///< the file for the table, after each run; empty: none
  std::string report = {};        ///< the folder of the runs' reports; empty: none
};

/// One run after the other, each with its output collected; a run reads from nothing. Writes a row
/// per run as soon as it has ended, and why a run does not fit or failed. A failure that is not for
/// want of memory is one of the program's, and the sweep goes on.
///
/// A search tries 1, 2, 4, ... ranks of one node, then 1, 2, 4, ... whole nodes, and at last, by
/// halves, what is between the largest that did not fit and the smallest that did: it takes for
/// granted that with more ranks a rank needs no more memory. A size on which the program fails is
/// one that it does not take. Where a run that succeeded has used no memory of a device, nothing
/// was measured: it is unknown whether the program fits, and a search ends.
///
/// Ctrl-C ends the run of that cluster and the sweep. Returns 0 if no run of a sweep failed or one
/// of a search fitted; 1 else; 2 for a cluster that does not exist; 127 and 126 for a program that
/// does not exist or cannot be executed; 130 after Ctrl-C.
int run_sweep(const ClusterSweep& sweep, Invocation& invocation);

}  // namespace accelerate::launcher::commands
