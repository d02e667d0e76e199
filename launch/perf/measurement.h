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
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace accelerate::launch::perf {

/// The operators of one name, of all ranks together.
struct OperatorCost {
  int64_t calls = 0;
  double ns = 0;
  double flops = 0;
  double bytes = 0;

  bool operator==(const OperatorCost&) const = default;
};

/// The collectives of one verb, algorithm and number of members.
struct CollectiveCost {
  int64_t calls = 0;
  double bytes = 0;
  double ns = 0;

  bool operator==(const CollectiveCost&) const = default;
};

/// One run of a workload.
struct Measurement {
  /// By name; README.md of this folder has them all: "time/step", "memory/peak", "count/kernels".
  std::map<std::string, double> metrics;
  std::map<std::string, OperatorCost> operators;      ///< "aten::mm"
  std::map<std::string, CollectiveCost> collectives;  ///< "all_reduce of 8, ring"
  /// The constants of the cluster and of the simulator's models, as text.
  std::string hardware;

  bool operator==(const Measurement&) const = default;
};

/// A workload's file.
struct WorkloadCost {
  std::string name;
  std::string command;  ///< the program with its options and arguments
  std::map<std::string, std::string> versions;
  std::map<std::string, Measurement> clusters;

  bool operator==(const WorkloadCost&) const = default;
};

/// What a run on `cluster` that has ended costs, by its summary.json.
absl::StatusOr<Measurement> measurement_of(const nlohmann::json& summary,
                                           const std::string& cluster);

/// Lines that a change shows well in a review: a metric or operator on each.
std::string to_text(const WorkloadCost& cost);
absl::StatusOr<WorkloadCost> parse_cost(const std::string& text);

/// Errors: those of reading the file, NotFound among them; those of parse_cost, with the path.
absl::StatusOr<WorkloadCost> load_cost(const std::string& path);

}  // namespace accelerate::launch::perf
