/// What a workload costs on simulated clusters: numbers that are the same on every machine.
///
/// They are those of a run's summary (simulator/report). Times, bytes and counts are of the whole
/// run unless they say "step"; a program that takes as many steps each time has the same ones each
/// time.
///
/// Units: nanoseconds of virtual time, bytes, floating-point operations.
/// Errors: InvalidArgument that says what the summary, or the file, lacks.
/// Threads: any.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace accelerate::launcher::perf {

/// What goes by one name, of all ranks together. A table has those figures that it needs.
struct Cost {
  int64_t calls = 0;
  double ns = 0;
  double flops = 0;
  double bytes = 0;

  bool operator==(const Cost&) const = default;
};
using Costs = std::map<std::string, Cost>;

/// One run of a workload.
struct Measurement {
  /// By name; README.md of this folder has them all: "time/step", "memory/peak", "count/kernels".
  std::map<std::string, double> metrics;
  Costs operators;         ///< "aten::mm"
  Costs collectives;       ///< by verb, number of members and algorithm: "all_reduce of 8, ring"
  Costs synchronisations;  ///< by the call for which the host waited: "aten::_local_scalar_dense"
  Costs allocations;       ///< by operator: blocks and their bytes
  Costs files;             ///< "write"
  Costs modules;           ///< of forward passes, by the module's path
  Costs peak;              ///< bytes by module at the peak, of the rank that needs most
  Costs path;              ///< segments of the critical path of the median step, which add up to it
  /// The constants of the cluster and of the simulator's models: "device/memory_bytes".
  std::map<std::string, std::string> hardware;

  bool operator==(const Measurement&) const = default;
};

/// The tables of a measurement, with the names that they have in files.
struct Table {
  const char* name;
  Costs Measurement::* costs;
};
inline constexpr Table kTables[] = {
    {"operators", &Measurement::operators},
    {"collectives", &Measurement::collectives},
    {"synchronisations", &Measurement::synchronisations},
    {"allocations", &Measurement::allocations},
    {"files", &Measurement::files},
    {"modules", &Measurement::modules},
    {"peak", &Measurement::peak},
    {"path", &Measurement::path},
};

/// A workload's file.
struct WorkloadCost {
  std::string name;
  std::string command;  ///< the program with its options and arguments
  std::map<std::string, std::string> versions;
  std::map<std::string, Measurement> clusters;

  bool operator==(const WorkloadCost&) const = default;
};

/// What a run on `cluster` that has ended costs, by its summary.json. Without "time/step" and what
/// belongs to it if no training step was seen, which a backward pass and an update of parameters
/// make.
absl::StatusOr<Measurement> measurement_of(const nlohmann::json& summary,
                                           const std::string& cluster);

/// Lines that a change shows well in a review: a metric, or a name in a table, on each.
std::string to_text(const WorkloadCost& cost);
absl::StatusOr<WorkloadCost> parse_cost(const std::string& text);

/// Errors: those of reading the file, NotFound among them; those of parse_cost, with the path.
absl::StatusOr<WorkloadCost> load_cost(const std::string& path);

}  // namespace accelerate::launcher::perf
