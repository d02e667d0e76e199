/// Faults of links, as changes of the speeds of a cluster's links.
///
/// Threads: pure functions.
#pragma once

#include <cstddef>
#include <vector>

#include "simulator/faults/fault_run.h"
#include "simulator/faults/rules.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/network/link_speeds.h"

namespace accelerate::simulator {

/// Says in `grounds` which links the cluster has. `spec` is copied.
void describe_links(const ClusterSpec& spec, FaultGrounds& grounds);

/// What an effect of a rule for a link does at the links of `ranks`, which are those of one unit of
/// the rule, from `from_ns` until `until_ns`.
LinkSpeeds::Change link_change(const ClusterSpec& spec, const FaultRule& rule, size_t number,
                               const FaultEffect& effect, const std::vector<int>& ranks,
                               double from_ns, double until_ns);

}  // namespace accelerate::simulator
