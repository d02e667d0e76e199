/// How the cores of a machine are arranged, as far as placing ranks needs it.
///
/// Units:   CPUs and NUMA nodes by the system's numbers.
/// Errors:  c10::Error where the machine cannot be read; c10::ValueError for a bad description.
/// Threads: values; make them where they are needed, for it takes milliseconds.
#pragma once

#include <string>
#include <vector>

namespace accelerate {

/// CPUs that share a memory.
struct NumaDomain {
  int node = 0;
  /// Ascending, and only those this process may use.
  std::vector<int> cpus;

  bool operator==(const NumaDomain&) const = default;
};

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

}  // namespace accelerate
