#include "simulator/network/closed_forms.h"

#include <bit>
#include <utility>
#include <vector>

namespace accelerate::simulator::internal {
namespace {

using Kind = CollectiveKind;

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

}  // namespace

std::vector<NodePart> parts_of(const ClusterSpec& spec, absl::Span<const int> ranks) {
  std::vector<NodePart> parts;
  int node = -1;
  for (const int rank : ranks) {
    if (std::exchange(node, rank / spec.ranks_per_node) != rank / spec.ranks_per_node) {
      parts.emplace_back();
    }
    NodePart& part = parts.back();
    ++part.members;
    const auto [first, last] = nics_of_local_rank(spec, rank % spec.ranks_per_node);
    for (int nic = first; nic < last; ++nic) {
      if (part.nics.empty() || part.nics.back() != nic) {
        part.nics.push_back(nic);
        part.on_nic.push_back(0);
      }
      ++part.on_nic.back();
    }
  }
  return parts;
}

Placement place(const ClusterSpec& spec, absl::Span<const int> ranks) {
  const std::vector<NodePart> parts = parts_of(spec, ranks);
  Placement placement{.members = static_cast<int>(ranks.size()),
                      .nodes = static_cast<int>(parts.size())};
  for (const NodePart& part : parts) {
    const int nics = static_cast<int>(part.nics.size());
    placement.aligned = placement.aligned && part.nics == parts[0].nics;
    placement.most_in_node = std::max(placement.most_in_node, part.members);
    placement.fewest_in_node = std::min(placement.fewest_in_node, part.members);
    if (part.members > 1 &&
        (placement.fewest_of_several == 0 || part.members < placement.fewest_of_several)) {
      placement.fewest_of_several = part.members;
    }
    placement.fewest_nics = std::min(placement.fewest_nics, nics);
    placement.most_nics = std::max(placement.most_nics, nics);
    for (const int members : part.on_nic) {
      placement.most_on_nic = std::max(placement.most_on_nic, members);
    }
  }
  return placement;
}

bool changes_rails(const ClusterSpec& spec, const Placement& placement) {
  return spec.network_fabric == NetworkFabric::kRails && spec.node_fabric != NodeFabric::kPcie &&
         placement.nodes > 1 && !placement.aligned;
}

double crossing_ns(const ClusterSpec& spec, const Placement& placement) {
  double latency = static_cast<double>(latency_between_nodes_ns(spec));
  if (changes_rails(spec, placement)) latency += static_cast<double>(latency_in_node_ns(spec));
  return latency;
}

double in_node_ring_bandwidth(const ClusterSpec& spec, int in_node, int hops) {
  const double link = spec.node_link.bytes_per_second;
  switch (spec.node_fabric) {
    // One ring for each link of a device to the others.
    case NodeFabric::kMesh: return link * (in_node - 1);
    case NodeFabric::kPcie: return std::min(link, bridge_bytes_per_second(spec) / hops);
    default: return link;
  }
}

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

int log2_up(int count) { return std::bit_width(static_cast<unsigned>(count - 1)); }
int log2_down(int count) { return std::bit_width(static_cast<unsigned>(count)) - 1; }

void add_all_reduce(ClosedForms& forms, CollectiveAlgorithm algorithm, const CollectiveCost& cost) {
  add(forms, Kind::kAllReduce, algorithm, cost);
  add(forms, Kind::kBarrier, algorithm, {cost.latency_ns, 0});
}

void add_gathering(ClosedForms& forms, CollectiveAlgorithm algorithm, const CollectiveCost& cost) {
  add(forms, Kind::kAllGather, algorithm, cost);
  add(forms, Kind::kReduceScatter, algorithm, cost);
}

void add_phases(ClosedForms& forms, CollectiveAlgorithm algorithm, const CollectiveCost& phase) {
  add_gathering(forms, algorithm, phase);
  add_all_reduce(forms, algorithm, {2 * phase.latency_ns, 2 * phase.ns_per_byte});
}

void add_rooted(ClosedForms& forms, CollectiveAlgorithm algorithm, const CollectiveCost& cost) {
  add(forms, Kind::kBroadcast, algorithm, cost);
  add(forms, Kind::kReduce, algorithm, cost);
}

}  // namespace accelerate::simulator::internal
