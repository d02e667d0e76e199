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

namespace accelerate::launch::perf {

/// One metric of one workload on one cluster.
struct Change {
  std::string workload;
  std::string cluster;
  std::string metric;
  double before = 0;
  double after = 0;
  /// The operator, collective or category of memory that accounts for most of it; empty: unknown.
  std::string cause;
};

struct Comparison {
  /// What makes the numbers of two runs differ without a change of the program: other versions or
  /// hardware. Before anything else.
  std::vector<std::string> notes;
  /// What has no counterpart: a workload or cluster without a baseline, or the reverse.
  std::vector<std::string> missing;
  std::vector<Change> changes;
  int compared = 0;  ///< metrics

  bool is_equal() const { return missing.empty() && changes.empty(); }
};

/// Adds to `comparison` how `after` differs from `before`. For each cluster the change with the
/// largest effect comes first: of time, then of memory, then of counts.
void compare(const WorkloadCost& before, const WorkloadCost& after, const Tolerances& tolerances,
             Comparison& comparison);

/// Tables for a terminal and for a comment on a pull request, and the same as JSON.
std::string to_table(const Comparison& comparison);
std::string to_markdown(const Comparison& comparison);
std::string to_json_text(const Comparison& comparison);

}  // namespace accelerate::launch::perf
