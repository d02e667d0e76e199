/// What closed forms are made of: how a group lies on nodes, and how collectives follow from each
/// other. For the implementation; README.md has the forms.
///
/// Units: bytes per second, nanoseconds. Threads: pure functions.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/network/network.h"

namespace accelerate::simulator::internal {

/// The members of a group in one node, and the NICs that they use.
struct NodePart {
  int members = 0;
  std::vector<int> nics;    ///< of the node, ascending
  std::vector<int> on_nic;  ///< how many members use each of them
};

/// By node. `ranks` ascend.
std::vector<NodePart> parts_of(const ClusterSpec& spec, absl::Span<const int> ranks);

/// The distribution of a group's members over nodes and NICs.
struct Placement {
  int members = 0;
  int nodes = 0;
  int most_in_node = 0;
  int fewest_in_node = std::numeric_limits<int>::max();
  /// The fewest members in a node that has at least two; 0 if no node has two.
  int fewest_of_several = 0;
  /// The NICs that members use, in the nodes with the fewest and the most; and the members that
  /// share the most loaded NIC.
  int fewest_nics = std::numeric_limits<int>::max();
  int most_nics = 0;
  int most_on_nic = 0;
  /// Whether all nodes use the same NICs.
  bool aligned = true;

  bool uniform() const { return most_in_node == fewest_in_node; }
  /// The number of rails that members of a node use.
  int rails() const { return std::min(most_in_node, most_nics); }
};

/// `ranks` are those of a cluster of nodes, two or more.
Placement place(const ClusterSpec& spec, absl::Span<const int> ranks);

/// Whether messages change rails. They do so inside the node, over the device on the other rail.
/// With a host bridge there is no need, because the bridge reaches every NIC.
bool changes_rails(const ClusterSpec& spec, const Placement& placement);

/// The latency of a message from one node to the next.
double crossing_ns(const ClusterSpec& spec, const Placement& placement);

/// The bandwidth of rings inside a node through `in_node` members with `hops` hops inside the node.
double in_node_ring_bandwidth(const ClusterSpec& spec, int in_node, int hops);

/// The total bandwidth of the rings over all members, one per NIC, at their bottleneck.
double ring_bandwidth(const ClusterSpec& spec, const Placement& placement);

/// The time for one byte at a bandwidth in bytes per second.
inline double ns_per_byte(double bytes_per_second) { return 1e9 / bytes_per_second; }

/// The steps of a binary tree: 0 for one.
int log2_up(int count);
int log2_down(int count);

inline void add(ClosedForms& forms, CollectiveKind kind, CollectiveAlgorithm algorithm,
                const CollectiveCost& cost) {
  forms[static_cast<size_t>(kind)].push_back({algorithm, cost});
}

/// An all-reduce, and a barrier, which is one without data.
void add_all_reduce(ClosedForms& forms, CollectiveAlgorithm algorithm, const CollectiveCost& cost);
/// An all-gather, and a reduce-scatter, which is one in reverse.
void add_gathering(ClosedForms& forms, CollectiveAlgorithm algorithm, const CollectiveCost& cost);
/// Both, where an all-reduce is a reduce-scatter and an all-gather.
void add_phases(ClosedForms& forms, CollectiveAlgorithm algorithm, const CollectiveCost& phase);
/// A broadcast, and a reduction, which is one in reverse.
void add_rooted(ClosedForms& forms, CollectiveAlgorithm algorithm, const CollectiveCost& cost);

/// The forms of a library that has some of its own; collective_library(spec) is not kAny, and the
/// links of `spec` are as fast as with_links_of_library() makes them. Not those of direct messages.
void add_forms_of_library(const ClusterSpec& spec, const Placement& placement, ClosedForms& forms);

}  // namespace accelerate::simulator::internal
