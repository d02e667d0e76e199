/// The facts about machine, build and job that belong into a bug report.
///
/// Local.
/// Errors: none; what cannot be found out is left out.
/// Mirrors: `accelerate env`; accelerate utils/other.py, check_os_kernel.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/runtime/runtime.h"

namespace accelerate {

struct EnvironmentFact {
  std::string name;
  std::string value;
};

struct EnvironmentReport {
  std::vector<EnvironmentFact> facts;

  /// One line "- name: value" a fact, ready to be pasted.
  std::string to_string() const;
  /// One JSON object in the order of the facts, indented by two.
  std::string to_json() const;
};

/// Version, platform, LibTorch, compiler, CPUs, NUMA nodes, memory, which devices are available,
/// who started the job, the rank's device, and each variable that the library reads and that is
/// set, without credentials and without JSON. The machine is the real one in a simulation too;
/// devices and job are the simulated ones.
EnvironmentReport environment_report(Runtime& runtime = Runtime::current());

/// Warns, on rank 0, if this machine runs a Linux kernel before 5.5, on which training is known to
/// hang. Local.
void check_os_kernel(const Runtime& runtime = Runtime::current());

namespace internal {
/// The warning for a system by its names from uname; absent for other systems and for unknown
/// releases.
std::optional<std::string> kernel_warning(std::string_view system, std::string_view release);
}  // namespace internal

}  // namespace accelerate
