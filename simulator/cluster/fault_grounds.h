/// The cluster and the run that rules of faults are for.
///
/// Threads: pure functions.
#pragma once

#include "simulator/cluster/cluster_options.h"
#include "simulator/faults/fault_run.h"
#include "simulator/hardware/cluster_spec.h"

namespace accelerate::simulator {

/// `spec` is copied.
FaultGrounds grounds_of(const ClusterSpec& spec, const ClusterOptions& options);

}  // namespace accelerate::simulator
