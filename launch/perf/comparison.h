/// Two measurements of the same workloads: what changed, and what accounts for it.
///
/// Every change beyond a metric's tolerance counts, also one for the better: a baseline that is
/// not accepted anew hides the next change.
///
/// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "launch/perf/measurement.h"
#include "launch/perf/workloads.h"

namespace accelerate::launcher::perf {

/// One metric of one workload on one cluster.
struct Change {
  std::string workload;
  std::string cluster;
  std::string metric;
  double before = 0;
  double after = 0;
  /// What accounts for most of it: an operator, collective, synchronisation or category of memory,
  /// with the module where one stands out; empty: unknown.
  std::string cause;
};

/// What a name in a table cost before and after.
struct Part {
  std::string name;  ///< "communication, ALLREDUCE", "host"
  Cost before;
  Cost after;
};

/// The change of a median step by the parts of its critical path (simulator/trace/critical_path.h),
/// which add up to the step before and after. The largest first; those without a change are left
/// out.
struct StepChange {
  std::string workload;
  std::string cluster;
  double before = 0;
  double after = 0;
  std::vector<Part> parts;
};

struct Comparison {
  /// What makes the numbers of two runs differ without a change of the program: other versions or
  /// hardware. Before anything else.
  std::vector<std::string> notes;
  /// What has no counterpart: a workload or cluster without a baseline, or the reverse.
  std::vector<std::string> missing;
  std::vector<Change> changes;
  std::vector<StepChange> steps;  ///< where time/step changed
  int compared = 0;               ///< metrics

  bool is_equal() const { return missing.empty() && changes.empty(); }
};

/// Adds to `comparison` how `after` differs from `before`. For each cluster the change with the
/// largest effect comes first: of time, then of memory, then of counts; sums before their parts.
void compare(const WorkloadCost& before, const WorkloadCost& after, const Tolerances& tolerances,
             Comparison& comparison);

/// Tables for a terminal and for a comment on a pull request, and the same as JSON.
std::string to_table(const Comparison& comparison);
std::string to_markdown(const Comparison& comparison);
std::string to_json_text(const Comparison& comparison);

}  // namespace accelerate::launcher::perf
