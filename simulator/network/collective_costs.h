/// The closed forms of README.md for one group of ranks; the implementation of network.cc.
///
/// Threads: pure functions.
#pragma once

#include "absl/types/span.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/network/network.h"

namespace accelerate::simulator::internal {

/// `spec` has a device; `torus` is the cluster's torus, or null; `ranks` are two or more.
CollectiveCosts collective_costs(const ClusterSpec& spec, const Torus* torus,
                                 absl::Span<const int> ranks);

/// The NIC of a node that messages of a local rank use. The NICs are divided evenly among the
/// ranks, or the ranks among the NICs if there are fewer ranks.
int nic_of_local_rank(const ClusterSpec& spec, int local_rank);

/// The latency of a message between two nodes: both NICs, the switches between them, and the
/// devices' links to their host bridges if the nodes have bridges.
int64_t latency_between_nodes_ns(const ClusterSpec& spec);
/// The latency of a message between two devices of a node.
int64_t latency_in_node_ns(const ClusterSpec& spec);

/// The bandwidth of a node's host bridge: half of the sum of its ports, as in servers with two
/// sockets.
double bridge_bytes_per_second(const ClusterSpec& spec);

}  // namespace accelerate::simulator::internal
