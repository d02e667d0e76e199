/// Binding a rank to the CPUs near its device, so that it does not read memory across sockets.
///
/// Local. Threads: those that exist are bound, and those that are made later inherit it.
/// Mirrors: set_numa_affinity, override_numa_affinity; ACCELERATE_CPU_AFFINITY.
/// Differs: ranks on CPUs are spread over the NUMA nodes, where HF Accelerate does nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "accelerate/runtime/machine.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {

/// The outcome of a call.
struct NumaAffinity {
  bool bound = false;
  /// Where the rank now runs; empty unless bound.
  std::vector<int> numa_nodes;
  std::vector<int> cpus;
  /// Why the rank is not bound; empty if it is.
  std::string reason;

  /// One sentence, as in "local rank 1 runs on CPUs 4-7 of NUMA node 1".
  std::string to_string(int local_process_index) const;
};

/// Binds the calling process to the NUMA node that the rank's device hangs at or, where that is not
/// known, to its share of the nodes: ranks of one machine in blocks, and several nodes to each
/// where there are fewer ranks. Does nothing on a machine with one node, and in a simulation.
/// `verbose`: prints what was done; unset: whether ACCELERATE_DEBUG_MODE is on.
/// The first answer is kept: later calls give it again and do nothing.
/// Errors: c10::ValueError for an index outside of the ranks on this machine.
NumaAffinity set_numa_affinity(int local_process_index, std::optional<bool> verbose = std::nullopt,
                               Runtime& runtime = Runtime::current());

/// The same, regardless of earlier calls. It reads the machine anew.
NumaAffinity override_numa_affinity(int local_process_index,
                                    std::optional<bool> verbose = std::nullopt,
                                    Runtime& runtime = Runtime::current());

namespace internal {

/// Where a rank belongs; `near` is the index of the domain near its device, or -1. Pure.
NumaAffinity plan_numa_affinity(const Machine& machine, int local_process_index,
                                int local_world_size, int near);

}  // namespace internal
}  // namespace accelerate
