/// The closed forms of README.md for one group of ranks. For network.cc only.
///
/// Threads: pure functions.
#pragma once

#include "absl/types/span.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/network/network.h"

namespace accelerate::simulator::internal {

/// Of a cluster with devices. `ranks`: two or more. `torus`: the cluster's, or null.
CollectiveCosts collective_costs(const ClusterSpec& spec, const Torus* torus,
                                 absl::Span<const int> ranks);

/// The NIC of a node that messages of a local rank use: the NICs, or the ranks if there are fewer,
/// are spread evenly.
int nic_of_local_rank(const ClusterSpec& spec, int local_rank);

/// Of one message between two nodes: both NICs, the switches between them, and the devices' links
/// to their host bridges where there are such.
int64_t latency_between_nodes_ns(const ClusterSpec& spec);
/// Of one message between two devices of a node.
int64_t latency_in_node_ns(const ClusterSpec& spec);

/// What the host bridge of a node carries in all: half of what its ports could send, as in servers
/// of two sockets.
double bridge_bytes_per_second(const ClusterSpec& spec);

}  // namespace accelerate::simulator::internal
