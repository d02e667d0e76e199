/// Binding a rank to the CPUs near its device, so that it does not read memory across sockets.
///
/// Local.
/// Threads: those that exist are bound, and those that are made later inherit it.
/// Mirrors: set_numa_affinity, override_numa_affinity; ACCELERATE_CPU_AFFINITY.
/// Differs: ranks on CPUs are spread over the NUMA nodes, where HF Accelerate does nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "accelerate/runtime/runtime.h"

namespace accelerate {

/// CPUs that share a memory.
struct NumaDomain {
  int node = 0;
  /// Ascending, and only those this process may use.
  std::vector<int> cpus;

  bool operator==(const NumaDomain&) const = default;
};

/// How the cores of a machine are arranged, by the system's numbers of CPUs and NUMA nodes. Make it
/// where it is needed, for that takes milliseconds.
/// Errors: c10::Error where the machine cannot be read; c10::ValueError for a bad description.
struct Machine {
  /// Ascending by node; those with CPUs only. A machine without NUMA is one domain.
  std::vector<NumaDomain> domains;
  int num_cores = 0;  ///< physical ones, of those this process may use
  int num_cpus = 0;

  /// The index of the domain that the PCI device at `bus_id`, as in "0000:65:00.0", is attached to;
  /// -1 if the machine does not report it.
  int domain_near(const std::string& bus_id) const;

  static Machine here();

  /// A synthetic machine in hwloc's notation, as in "numa:2 core:4 pu:1".
  static Machine synthetic(const std::string& description);
};

/// Binds all threads of this process to the CPUs. Errors: c10::Error where the system refuses.
void bind_process(const std::vector<int>& cpus);

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

/// The version of hwloc's interface that this library is linked with, as in "2.9.0".
std::string hwloc_version();

/// Where a rank belongs; `near` is the index of the domain near its device, or -1. Pure.
NumaAffinity plan_numa_affinity(const Machine& machine, int local_process_index,
                                int local_world_size, int near);

}  // namespace internal
}  // namespace accelerate
