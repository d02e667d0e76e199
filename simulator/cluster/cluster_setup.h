/// What a simulated cluster is, by its text and its options.
///
/// Threads: pure functions.
#pragma once

#include "absl/strings/string_view.h"
#include "simulator/c10d/fold_plan.h"
#include "simulator/cluster/cluster_options.h"
#include "simulator/faults/fault_run.h"
#include "simulator/hardware/cluster_spec.h"

namespace accelerate::simulator {

/// Errors: c10::ValueError; see Cluster::Cluster.
ClusterSpec parsed(absl::string_view text, const ClusterOptions& options);

/// The cluster and the run that rules of faults are for. `spec` is copied.
FaultGrounds grounds_of(const ClusterSpec& spec, const ClusterOptions& options);

/// Which ranks of the cluster run. Errors: c10::ValueError that says what folding needs.
FoldPlan fold_plan(const ClusterSpec& spec, const ClusterOptions& options);

}  // namespace accelerate::simulator
