#include "simulator/network/network.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace accelerate::simulator::internal {
namespace {

using Kind = CollectiveKind;
using Algorithm = CollectiveAlgorithm;

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// The share of a ring's bandwidth that a double binary tree achieves. NCCL, src/graph/tuning.cc.
constexpr double kTreeEfficiency = 0.92;

// The time for one byte at a bandwidth in bytes per second.
double ns_per_byte(double bytes_per_second) { return 1e9 / bytes_per_second; }

double log2_up(int count) { return std::bit_width(static_cast<unsigned>(count - 1)); }

void set(ClosedForms& costs, Kind kind, Algorithm algorithm, const CollectiveCost& cost) {
  costs[static_cast<size_t>(kind)][static_cast<size_t>(algorithm)] = cost;
}

// Sets the collectives that follow from an all-gather, which takes n-1 steps of a ring (or phases
// of them): a reduce-scatter is an all-gather in reverse, an all-reduce is both, a barrier is an
// all-reduce without data.
void set_gathering(ClosedForms& costs, Algorithm algorithm, const CollectiveCost& all_gather) {
  set(costs, Kind::kAllGather, algorithm, all_gather);
  set(costs, Kind::kReduceScatter, algorithm, all_gather);
  set(costs, Kind::kAllReduce, algorithm, {2 * all_gather.latency_ns, 2 * all_gather.ns_per_byte});
  set(costs, Kind::kBarrier, algorithm, {2 * all_gather.latency_ns, 0});
}

// Sets a broadcast in many small pieces, and a reduction, which is a broadcast in reverse.
void set_rooted(ClosedForms& costs, Algorithm algorithm, const CollectiveCost& broadcast) {
  set(costs, Kind::kBroadcast, algorithm, broadcast);
  set(costs, Kind::kReduce, algorithm, broadcast);
}

// ---- Clusters of nodes.

// The distribution of a group's members over nodes and NICs.
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

Placement place(const ClusterSpec& spec, absl::Span<const int> ranks) {
  Placement placement{.members = static_cast<int>(ranks.size())};
  std::vector<int> nics_of_first_node;
  for (size_t begin = 0; begin < ranks.size();) {
    const int node = ranks[begin] / spec.ranks_per_node;
    std::vector<int> nics;  // Ascending, because ranks are.
    int on_nic = 0;
    int in_node = 0;
    for (; begin < ranks.size() && ranks[begin] / spec.ranks_per_node == node; ++begin) {
      ++in_node;
      const auto [first, last] = nics_of_local_rank(spec, ranks[begin] % spec.ranks_per_node);
      for (int nic = first; nic < last; ++nic) {
        on_nic = !nics.empty() && nics.back() == nic ? on_nic + 1 : 1;
        if (on_nic == 1) nics.push_back(nic);
        placement.most_on_nic = std::max(placement.most_on_nic, on_nic);
      }
    }
    if (placement.nodes++ == 0) nics_of_first_node = nics;
    placement.aligned = placement.aligned && nics == nics_of_first_node;
    placement.most_in_node = std::max(placement.most_in_node, in_node);
    placement.fewest_in_node = std::min(placement.fewest_in_node, in_node);
    if (in_node > 1 &&
        (placement.fewest_of_several == 0 || in_node < placement.fewest_of_several)) {
      placement.fewest_of_several = in_node;
    }
    placement.fewest_nics = std::min(placement.fewest_nics, static_cast<int>(nics.size()));
    placement.most_nics = std::max(placement.most_nics, static_cast<int>(nics.size()));
  }
  return placement;
}

// Whether messages change rails. They do so inside the node, over the device on the other rail.
// With a host bridge there is no need, because the bridge reaches every NIC.
bool changes_rails(const ClusterSpec& spec, const Placement& placement) {
  return spec.network_fabric == NetworkFabric::kRails && spec.node_fabric != NodeFabric::kPcie &&
         placement.nodes > 1 && !placement.aligned;
}

// The latency of a message from one node to the next.
double crossing_ns(const ClusterSpec& spec, const Placement& placement) {
  double latency = static_cast<double>(latency_between_nodes_ns(spec));
  if (changes_rails(spec, placement)) latency += static_cast<double>(latency_in_node_ns(spec));
  return latency;
}

// The bandwidth of rings inside a node through `in_node` members with `hops` hops inside the node.
double in_node_ring_bandwidth(const ClusterSpec& spec, int in_node, int hops) {
  const double link = spec.node_link.bytes_per_second;
  switch (spec.node_fabric) {
    // One ring for each link of a device to the others.
    case NodeFabric::kMesh: return link * (in_node - 1);
    case NodeFabric::kPcie: return std::min(link, bridge_bytes_per_second(spec) / hops);
    default: return link;
  }
}

// The total bandwidth of the rings over all members, one per NIC, at their bottleneck.
double ring_bandwidth(const ClusterSpec& spec, const Placement& placement) {
  double bandwidth = kUnlimited;
  if (placement.fewest_of_several > 0) {
    const int several = spec.node_fabric == NodeFabric::kPcie ? placement.most_in_node
                                                              : placement.fewest_of_several;
    const int hops = placement.nodes > 1 ? several - 1 : several;
    bandwidth = in_node_ring_bandwidth(spec, several, hops);
  }
  if (placement.nodes > 1) {
    bandwidth = std::min(bandwidth, placement.fewest_nics * spec.nic.bytes_per_second);
    // Behind a host bridge, NICs are reached over the device's only link.
    if (spec.node_fabric == NodeFabric::kPcie || changes_rails(spec, placement)) {
      bandwidth = std::min(bandwidth, spec.node_link.bytes_per_second);
    }
  }
  return bandwidth;
}

void set_ring(const ClusterSpec& spec, const Placement& placement, ClosedForms& costs) {
  const double n = placement.members;
  const double latency = (placement.nodes - 1) * crossing_ns(spec, placement) +
                         (n - placement.nodes) * static_cast<double>(latency_in_node_ns(spec));
  const double per_byte = ns_per_byte(ring_bandwidth(spec, placement));
  set_gathering(costs, Algorithm::kRing, {latency, (n - 1) / n * per_byte});
  set_rooted(costs, Algorithm::kRing, {latency, per_byte});
}

// The members of a node are a chain, and the nodes a double binary tree. NCCL, src/graph/tuning.cc.
void set_tree(const ClusterSpec& spec, const Placement& placement, ClosedForms& costs) {
  const double depth_ns =
      log2_up(placement.nodes) * crossing_ns(spec, placement) +
      (placement.most_in_node - 1) * static_cast<double>(latency_in_node_ns(spec));
  const double per_byte = ns_per_byte(kTreeEfficiency * ring_bandwidth(spec, placement));
  set_rooted(costs, Algorithm::kTree, {depth_ns, per_byte});
  // Data goes up one of the two trees and down again; every byte enters and leaves a device twice.
  set(costs, Kind::kAllReduce, Algorithm::kTree, {2 * depth_ns, 2 * per_byte});
  set(costs, Kind::kBarrier, Algorithm::kTree, {2 * depth_ns, 0});
}

void set_hierarchical(const ClusterSpec& spec, const Placement& placement, ClosedForms& costs) {
  if (placement.nodes < 2 || placement.most_in_node < 2 || !placement.uniform()) return;
  const double m = placement.nodes;
  const double k = placement.most_in_node;
  const double in_node =
      ns_per_byte(in_node_ring_bandwidth(spec, placement.most_in_node, placement.most_in_node));
  // The sum of all rings between nodes; each ring carries 1/k of the bytes.
  double between = placement.fewest_nics * spec.nic.bytes_per_second;
  if (spec.node_fabric == NodeFabric::kPcie) {
    between = std::min(between, k * spec.node_link.bytes_per_second);
  }
  set_gathering(costs, Algorithm::kHierarchical,
                {(k - 1) * static_cast<double>(latency_in_node_ns(spec)) +
                     (m - 1) * crossing_ns(spec, placement),
                 (k - 1) / k * in_node + (m - 1) / m * ns_per_byte(between)});
}

// The latency of the longest route between two members.
double direct_ns(const ClusterSpec& spec, const Placement& placement) {
  if (placement.nodes == 1) return static_cast<double>(latency_in_node_ns(spec));
  double latency = static_cast<double>(latency_between_nodes_ns(spec));
  const bool detour = changes_rails(spec, placement) ||
                      (spec.network_fabric == NetworkFabric::kRails &&
                       spec.node_fabric != NodeFabric::kPcie && placement.rails() > 1);
  if (detour) latency += static_cast<double>(latency_in_node_ns(spec));
  return latency;
}

void set_all_to_all(const ClusterSpec& spec, const Placement& placement, ClosedForms& costs) {
  const double n = placement.members;
  const double k = placement.most_in_node;
  const double link = ns_per_byte(spec.node_link.bytes_per_second);
  const double remote = (n - placement.fewest_in_node) / n;  // The share of the bytes.
  // Bytes for another rail are first passed on inside the node.
  double handed_over = 0;
  if (spec.network_fabric == NetworkFabric::kRails && placement.nodes > 1) {
    const double rails = placement.rails();
    handed_over = remote * (placement.aligned ? (rails - 1) / rails : 1);
  }
  double in_node = 0;
  switch (spec.node_fabric) {
    case NodeFabric::kMesh:
      in_node = ((k - 1) / n + handed_over) / std::max(1.0, k - 1) * link;
      break;
    case NodeFabric::kPcie:
      in_node = std::max((n - 1) / n * link,
                         k * (k - 1) / n * ns_per_byte(bridge_bytes_per_second(spec)));
      break;
    default: in_node = ((k - 1) / n + handed_over) * link;
  }
  double between = 0;
  if (placement.nodes > 1) {
    // A member with several NICs divides its bytes among them.
    const double members_on_nic =
        std::max(static_cast<double>(placement.most_on_nic) *
                     std::min(1.0, static_cast<double>(spec.ranks_per_node) / spec.nics_per_node),
                 k / placement.most_nics);
    between = members_on_nic * remote * ns_per_byte(spec.nic.bytes_per_second);
  }
  set(costs, Kind::kAllToAll, Algorithm::kDirect,
      {direct_ns(spec, placement), std::max(in_node, between)});
}

void set_gather(const ClusterSpec& spec, const Placement& placement, ClosedForms& costs) {
  const double n = placement.members;
  const double link = ns_per_byte(spec.node_link.bytes_per_second);
  // The slower of two cases: the root's node has the most members, or the fewest.
  const double near = (placement.most_in_node - 1) / n;
  const double far = (n - placement.fewest_in_node) / n;
  double in_node = near * link;
  if (spec.node_fabric == NodeFabric::kMesh) in_node = placement.most_in_node > 1 ? link / n : 0;
  if (spec.node_fabric == NodeFabric::kPcie) in_node = (n - 1) / n * link;
  const double between = placement.nodes > 1 ? far * ns_per_byte(spec.nic.bytes_per_second) : 0.0;
  const CollectiveCost cost{direct_ns(spec, placement), std::max(in_node, between)};
  set(costs, Kind::kGather, Algorithm::kDirect, cost);
  set(costs, Kind::kScatter, Algorithm::kDirect, cost);
}

// ---- Tori.

// Reduce-scatter or all-gather, axis by axis: the remaining bytes shrink with each axis. The
// longest axis is first, because it gains most from links in both directions.
void set_torus(const ClusterSpec& spec, std::vector<TorusAxis> box, ClosedForms& costs) {
  std::stable_sort(box.begin(), box.end(),
                   [](const TorusAxis& a, const TorusAxis& b) { return a.members > b.members; });
  CollectiveCost phases;
  double share = 1;
  int fewest_rings = 2;
  for (const TorusAxis& axis : box) {
    if (axis.members == 1) continue;
    const double s = axis.members;
    const double per_byte = ns_per_byte(axis.rings * spec.node_link.bytes_per_second);
    phases.latency_ns += axis.links_of_steps * static_cast<double>(spec.node_link.latency_ns);
    phases.ns_per_byte += share * (s - 1) / s * per_byte;
    share /= s;
    fewest_rings = std::min(fewest_rings, axis.rings);
  }
  set_gathering(costs, Algorithm::kTorus, phases);
  set_rooted(costs, Algorithm::kTorus,
             {phases.latency_ns, ns_per_byte(fewest_rings * spec.node_link.bytes_per_second)});
}

void set_torus_direct(const ClusterSpec& spec, const Torus& torus,
                      const std::vector<TorusAxis>& box, double members, ClosedForms& costs) {
  const double link = ns_per_byte(spec.node_link.bytes_per_second);
  double links = 0;
  double all_to_all = 0;
  double gather = 0;
  double slab = 1;  // Members whose messages arrive along this axis, per coordinate on it.
  for (int i = 0; i < torus.num_axes(); ++i) {
    const double s = box[i].members;
    links += box[i].farthest;
    // A line along this axis carries n/s messages for each pair of its members.
    all_to_all = std::max(all_to_all, box[i].all_to_all_load / s * link);
    gather = std::max(gather, slab * box[i].busier_side / members * link);
    slab *= s;
  }
  const double latency = links * static_cast<double>(spec.node_link.latency_ns);
  set(costs, Kind::kAllToAll, Algorithm::kDirect, {latency, all_to_all});
  set(costs, Kind::kGather, Algorithm::kDirect, {latency, gather});
  set(costs, Kind::kScatter, Algorithm::kDirect, {latency, gather});
}

ClosedForms costs_on_torus(const ClusterSpec& spec, const Torus& torus,
                           absl::Span<const int> ranks) {
  ClosedForms costs;
  const double n = static_cast<double>(ranks.size());
  const TorusRing ring = analyse_ring(torus, ranks);
  const double per_byte = ns_per_byte(ring.bandwidth * spec.node_link.bytes_per_second);
  const double latency = ring.links_of_steps * static_cast<double>(spec.node_link.latency_ns);
  set_gathering(costs, Algorithm::kRing, {latency, (n - 1) / n * per_byte});
  set_rooted(costs, Algorithm::kRing, {latency, per_byte});
  const std::vector<TorusAxis> box = analyse_box(torus, ranks);
  if (!box.empty()) {
    set_torus(spec, box, costs);
    set_torus_direct(spec, torus, box, n, costs);
    return costs;
  }
  // Scattered members forward messages along the ring; the average message travels half of it.
  set(costs, Kind::kAllToAll, Algorithm::kDirect, {latency, (n - 1) / 2 * per_byte});
  set(costs, Kind::kGather, Algorithm::kDirect, {latency, (n - 1) / n * per_byte});
  set(costs, Kind::kScatter, Algorithm::kDirect, {latency, (n - 1) / n * per_byte});
  return costs;
}

}  // namespace

std::pair<int, int> nics_of_local_rank(const ClusterSpec& spec, int local_rank) {
  const int nics = spec.nics_per_node;
  const int ranks = spec.ranks_per_node;
  if (nics <= ranks) {
    const int nic = static_cast<int>(static_cast<int64_t>(local_rank) * nics / ranks);
    return {nic, nic + 1};
  }
  return {static_cast<int>(static_cast<int64_t>(local_rank) * nics / ranks),
          static_cast<int>(static_cast<int64_t>(local_rank + 1) * nics / ranks)};
}

double share_of_nics(const ClusterSpec& spec, absl::Span<const int> ranks) {
  double share = 1;
  for (size_t begin = 0; begin < ranks.size();) {
    const int node = ranks[begin] / spec.ranks_per_node;
    std::vector<int> members(spec.nics_per_node);  // by NIC
    for (; begin < ranks.size() && ranks[begin] / spec.ranks_per_node == node; ++begin) {
      const auto [first, last] = nics_of_local_rank(spec, ranks[begin] % spec.ranks_per_node);
      for (int nic = first; nic < last; ++nic) ++members[nic];
    }
    std::vector<int> users(spec.nics_per_node);
    for (int local = 0; local < spec.ranks_per_node; ++local) {
      const auto [first, last] = nics_of_local_rank(spec, local);
      for (int nic = first; nic < last; ++nic) ++users[nic];
    }
    for (int nic = 0; nic < spec.nics_per_node; ++nic) {
      if (members[nic] > 0) share = std::min(share, static_cast<double>(members[nic]) / users[nic]);
    }
  }
  return share;
}

int64_t latency_in_node_ns(const ClusterSpec& spec) {
  return (spec.node_fabric == NodeFabric::kMesh ? 1 : 2) * spec.node_link.latency_ns;
}

int64_t latency_between_nodes_ns(const ClusterSpec& spec) {
  const int switches = spec.network_fabric == NetworkFabric::kRails ? 1 : 3;
  int64_t latency = 2 * spec.nic.latency_ns + switches * kNetworkSwitchNs;
  if (spec.node_fabric == NodeFabric::kPcie) latency += 2 * spec.node_link.latency_ns;
  return latency;
}

double bridge_bytes_per_second(const ClusterSpec& spec) {
  return std::max(1.0, spec.devices_per_node() / 2.0) * spec.node_link.bytes_per_second;
}

ClosedForms closed_forms(const ClusterSpec& spec, const Torus* torus, absl::Span<const int> ranks) {
  if (torus != nullptr) return costs_on_torus(spec, *torus, ranks);
  ClosedForms costs;
  const Placement placement = place(spec, ranks);
  set_ring(spec, placement, costs);
  set_tree(spec, placement, costs);
  set_hierarchical(spec, placement, costs);
  set_all_to_all(spec, placement, costs);
  set_gather(spec, placement, costs);
  return costs;
}

}  // namespace accelerate::simulator::internal
