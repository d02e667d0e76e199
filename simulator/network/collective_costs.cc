#include "simulator/network/closed_forms.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace accelerate::simulator::internal {
namespace {

using Kind = CollectiveKind;
using Algorithm = CollectiveAlgorithm;

// The share of a ring's bandwidth that a double binary tree achieves. NCCL, src/graph/tuning.cc.
constexpr double kTreeEfficiency = 0.92;

// ---- Clusters of nodes.

void add_ring(const ClusterSpec& spec, const Placement& placement, ClosedForms& costs) {
  const double n = placement.members;
  const double latency = (placement.nodes - 1) * crossing_ns(spec, placement) +
                         (n - placement.nodes) * static_cast<double>(latency_in_node_ns(spec));
  const double per_byte = ns_per_byte(ring_bandwidth(spec, placement));
  add_phases(costs, Algorithm::kRing, {latency, (n - 1) / n * per_byte});
  add_rooted(costs, Algorithm::kRing, {latency, per_byte});
}

// The members of a node are a chain, and the nodes a double binary tree. NCCL, src/graph/tuning.cc.
void add_tree(const ClusterSpec& spec, const Placement& placement, ClosedForms& costs) {
  const double depth_ns =
      log2_up(placement.nodes) * crossing_ns(spec, placement) +
      (placement.most_in_node - 1) * static_cast<double>(latency_in_node_ns(spec));
  const double per_byte = ns_per_byte(kTreeEfficiency * ring_bandwidth(spec, placement));
  add_rooted(costs, Algorithm::kTree, {depth_ns, per_byte});
  // Data goes up one of the two trees and down again; every byte enters and leaves a device twice.
  add_all_reduce(costs, Algorithm::kTree, {2 * depth_ns, 2 * per_byte});
}

void add_hierarchical(const ClusterSpec& spec, const Placement& placement, ClosedForms& costs) {
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
  add_phases(costs, Algorithm::kHierarchical,
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

void add_all_to_all(const ClusterSpec& spec, const Placement& placement, ClosedForms& costs) {
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
  add(costs, Kind::kAllToAll, Algorithm::kDirect,
      {direct_ns(spec, placement), std::max(in_node, between)});
}

void add_gather(const ClusterSpec& spec, const Placement& placement, ClosedForms& costs) {
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
  add(costs, Kind::kGather, Algorithm::kDirect, cost);
  add(costs, Kind::kScatter, Algorithm::kDirect, cost);
}

// ---- Tori.

// A phase of a reduce-scatter along one axis: the time for each byte that it begins with.
double phase(const ClusterSpec& spec, const TorusAxis& axis) {
  const double s = axis.members;
  return (s - 1) / s * ns_per_byte(axis.rings * spec.node_link.bytes_per_second);
}

// Reduce-scatter or all-gather, axis by axis: the remaining bytes shrink with each axis. The
// longest axis is first, because it gains most from links in both directions.
double one_axis_at_a_time(const ClusterSpec& spec, const std::vector<TorusAxis>& axes) {
  double time = 0;
  double share = 1;
  for (const TorusAxis& axis : axes) {
    time += share * phase(spec, axis);
    share /= axis.members;
  }
  return time;
}

// As many parts as there are axes, each along another axis at a time, so that all links are busy.
double all_axes_at_once(const ClusterSpec& spec, const std::vector<TorusAxis>& axes) {
  double time = 0;
  std::vector<double> shares(axes.size(), 1.0 / static_cast<double>(axes.size()));
  for (size_t round = 0; round < axes.size(); ++round) {
    double slowest = 0;
    for (size_t part = 0; part < axes.size(); ++part) {
      const TorusAxis& axis = axes[(part + round) % axes.size()];
      slowest = std::max(slowest, shares[part] * phase(spec, axis));
      shares[part] /= axis.members;
    }
    time += slowest;
  }
  return time;
}

void add_torus(const ClusterSpec& spec, const std::vector<TorusAxis>& box, ClosedForms& costs) {
  std::vector<TorusAxis> axes;
  for (const TorusAxis& axis : box) {
    if (axis.members > 1) axes.push_back(axis);
  }
  std::stable_sort(axes.begin(), axes.end(),
                   [](const TorusAxis& a, const TorusAxis& b) { return a.members > b.members; });
  // Parts travel both ways, so that the last to arrive comes from the farthest member.
  double links = 0;
  int fewest_rings = 2;
  for (const TorusAxis& axis : axes) {
    links += axis.farthest;
    fewest_rings = std::min(fewest_rings, axis.rings);
  }
  const CollectiveCost phases = {
      links * static_cast<double>(spec.node_link.latency_ns),
      std::min(one_axis_at_a_time(spec, axes), all_axes_at_once(spec, axes))};
  add_phases(costs, Algorithm::kTorus, phases);
  add_rooted(costs, Algorithm::kTorus,
             {phases.latency_ns, ns_per_byte(fewest_rings * spec.node_link.bytes_per_second)});
}

void add_torus_direct(const ClusterSpec& spec, const Torus& torus,
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
  add(costs, Kind::kAllToAll, Algorithm::kDirect, {latency, all_to_all});
  add(costs, Kind::kGather, Algorithm::kDirect, {latency, gather});
  add(costs, Kind::kScatter, Algorithm::kDirect, {latency, gather});
}

ClosedForms costs_on_torus(const ClusterSpec& spec, const Torus& torus,
                           absl::Span<const int> ranks) {
  ClosedForms costs;
  const double n = static_cast<double>(ranks.size());
  const TorusRing ring = analyse_ring(torus, ranks);
  const double per_byte = ns_per_byte(ring.bandwidth * spec.node_link.bytes_per_second);
  const double latency = ring.links_of_steps * static_cast<double>(spec.node_link.latency_ns);
  add_phases(costs, Algorithm::kRing, {latency, (n - 1) / n * per_byte});
  add_rooted(costs, Algorithm::kRing, {latency, per_byte});
  const std::vector<TorusAxis> box = analyse_box(torus, ranks);
  if (!box.empty()) {
    add_torus(spec, box, costs);
    add_torus_direct(spec, torus, box, n, costs);
    return costs;
  }
  // Scattered members forward messages along the ring; the average message travels half of it.
  add(costs, Kind::kAllToAll, Algorithm::kDirect, {latency, (n - 1) / 2 * per_byte});
  add(costs, Kind::kGather, Algorithm::kDirect, {latency, (n - 1) / n * per_byte});
  add(costs, Kind::kScatter, Algorithm::kDirect, {latency, (n - 1) / n * per_byte});
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
  std::vector<int> all(spec.ranks_per_node);
  std::iota(all.begin(), all.end(), 0);
  // All of a node's ranks use all of its NICs.
  const std::vector<int> users = parts_of(spec, all)[0].on_nic;
  double share = 1;
  for (const NodePart& part : parts_of(spec, ranks)) {
    for (size_t i = 0; i < part.nics.size(); ++i) {
      share = std::min(share, static_cast<double>(part.on_nic[i]) / users[part.nics[i]]);
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

ClosedForms closed_forms(const ClusterSpec& cluster, const Torus* torus,
                         absl::Span<const int> ranks) {
  if (torus != nullptr) return costs_on_torus(cluster, *torus, ranks);
  ClosedForms costs;
  const ClusterSpec spec = with_links_of_library(cluster);
  const Placement placement = place(spec, ranks);
  const CollectiveLibrary library = collective_library(spec);
  // HCCL and HCL have their algorithms for as many members on each node.
  if (library == CollectiveLibrary::kRccl ||
      (library != CollectiveLibrary::kAny && placement.uniform())) {
    add_forms_of_library(spec, placement, costs);
  } else {
    add_ring(spec, placement, costs);
    add_tree(spec, placement, costs);
    add_hierarchical(spec, placement, costs);
  }
  add_all_to_all(spec, placement, costs);
  add_gather(spec, placement, costs);
  if (library == CollectiveLibrary::kRccl) {
    for (const Kind kind : {Kind::kAllToAll, Kind::kGather, Kind::kScatter}) {
      for (ClosedForm& form : costs[static_cast<size_t>(kind)]) {
        form.cost.latency_ns = rccl_message_ns(spec, placement.nodes == 1);
      }
    }
  }
  return costs;
}

std::optional<nccl::Collective> nccl_collective(CollectiveKind kind) {
  switch (kind) {
    // LibTorch's barrier is an all-reduce of one element.
    case CollectiveKind::kBarrier:
    case CollectiveKind::kAllReduce: return nccl::Collective::kAllReduce;
    case CollectiveKind::kReduce: return nccl::Collective::kReduce;
    case CollectiveKind::kBroadcast: return nccl::Collective::kBroadcast;
    case CollectiveKind::kAllGather: return nccl::Collective::kAllGather;
    case CollectiveKind::kReduceScatter: return nccl::Collective::kReduceScatter;
    default: return std::nullopt;
  }
}

nccl::Machine nccl_machine(const ClusterSpec& spec) {
  return nccl::machine_of(spec, latency_between_nodes_ns(spec));
}

ClusterSpec with_links_of(const nccl::Machine& machine, ClusterSpec spec) {
  spec.node_link.bytes_per_second = machine.nvlink * 1e9;
  spec.nic.bytes_per_second = machine.nic * 1e9;
  return spec;
}

CollectiveCosts nccl_costs(const ClusterSpec& spec, absl::Span<const int> ranks) {
  const nccl::Machine machine = nccl_machine(spec);
  const std::vector<NodePart> parts = parts_of(spec, ranks);
  std::vector<nccl::Node> kinds;
  for (const NodePart& part : parts) {
    const nccl::Node node = {part.members, static_cast<int>(part.nics.size())};
    if (std::ranges::find(kinds, node) == kinds.end()) kinds.push_back(node);
  }
  const nccl::Shape shape = {.ranks = static_cast<int>(ranks.size()),
                             .nodes = static_cast<int>(parts.size()),
                             .kinds = kinds};
  CollectiveCosts costs = {.nccl = nccl::Tuning(machine, shape)};
  ClosedForms forms = closed_forms(with_links_of(machine, spec), nullptr, ranks);
  for (const CollectiveKind kind :
       {CollectiveKind::kAllToAll, CollectiveKind::kGather, CollectiveKind::kScatter}) {
    auto& direct = costs.forms[static_cast<size_t>(kind)];
    direct = std::move(forms[static_cast<size_t>(kind)]);
    for (ClosedForm& form : direct) {
      form.cost.latency_ns = 1000 * nccl::message_latency_us(machine, parts.size() == 1);
    }
  }
  return costs;
}

}  // namespace accelerate::simulator::internal
