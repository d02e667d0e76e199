/// The facts about machine, build and job that belong into a bug report.
///
/// Local. Errors: none; what cannot be found out is left out.
/// Mirrors: `accelerate env`.
#pragma once

#include <string>
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
/// set. The machine is the real one in a simulation too; devices and job are the simulated ones.
EnvironmentReport environment_report(const Runtime& runtime = Runtime::current());

}  // namespace accelerate
