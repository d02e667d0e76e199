#include "simulator/network/link_use.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "simulator/network/closed_forms.h"
#include "simulator/network/torus.h"

namespace accelerate::simulator {
namespace {

using Kind = CollectiveKind;
using Algorithm = CollectiveAlgorithm;
using internal::NodePart;

// Both directions of a member's links within its node, and of its part of the NICs.
LinkBytes both_ways(double node, double nic) {
  return {.node_out = node, .node_in = node, .bridge = node, .nic_out = nic, .nic_in = nic};
}

// What a member sends in all of the steps of a ring; 0: the collective is a chain.
double ring_volume(Kind kind, double n) {
  switch (kind) {
    case Kind::kAllReduce: return 2 * (n - 1) / n;
    case Kind::kAllGather:
    case Kind::kReduceScatter: return (n - 1) / n;
    default: return 0;
  }
}

// ---- Clusters of nodes. `k` members are in the node of the member, of `n` on `m` nodes.

struct Place {
  double n = 0;
  double m = 0;
  double k = 0;
  int rails = 1;
  bool changes_rails = false;  // messages leave by another member's NIC
  bool has_rails = false;
};

LinkBytes ring(Kind kind, const Place& at) {
  const double hops = at.m > 1 ? at.k - 1 + (at.changes_rails ? 1 : 0) : at.k;
  const double volume = ring_volume(kind, at.n);
  if (volume > 0) return both_ways(volume * hops / at.k, at.m > 1 ? volume / at.k : 0);
  // A broadcast or a reduction is a chain.
  return both_ways((at.k - 1) / at.k, (at.m - 1) / at.m / at.k);
}

// A tree, or phases in the nodes and between them.
LinkBytes tree(Kind kind, const Place& at) {
  const double ways = kind == Kind::kAllReduce ? 2 : 1;
  return both_ways(ways * (at.k - 1) / at.k, ways * (at.m - 1) / at.m / at.k);
}

// A full mesh in each node, which by HCCL works before or after the rings or trees between nodes:
// of an all-gather or a reduce-scatter each member then moves everything that other nodes have. A
// broadcast is a scatter, of which a member's mean counts, and an all-gather.
LinkBytes mesh_and_nodes(Kind kind, const Place& at) {
  const double in_node = (at.k - 1) / at.k;
  const double between = (at.m - 1) / at.m;
  switch (kind) {
    case Kind::kAllReduce: return both_ways(2 * in_node, 2 * between / at.k);
    case Kind::kBroadcast:
    case Kind::kReduce: return both_ways(in_node + in_node / at.k, 2 * between / at.k);
    default: return both_ways((at.k - 1) / at.n, between);
  }
}

// A switch reads every member's data once to add it up, and gives each a part of the sums; it takes
// a part from each member and gives it to all.
LinkBytes in_switches(Kind kind, const Place& at) {
  LinkBytes bytes;
  const double between = (at.m - 1) / at.m / at.k;
  if (kind != Kind::kAllGather) bytes += {.node_out = 1, .node_in = 1 / at.k};
  if (kind != Kind::kReduceScatter) bytes += {.node_out = 1 / at.k, .node_in = 1};
  const double ways = kind == Kind::kAllReduce ? 2 : 1;
  bytes.nic_out = bytes.nic_in = ways * between;
  return bytes;
}

LinkBytes all_to_all(const Place& at) {
  const double remote = (at.n - at.k) / at.n;
  double handed_over = 0;
  if (at.has_rails && at.m > 1) {
    handed_over = remote * (at.changes_rails ? 1 : (at.rails - 1.0) / at.rails);
  }
  return both_ways((at.k - 1) / at.n + handed_over, remote);
}

// To the root from all others, or the other way.
LinkBytes rooted(bool gathers, bool is_root, bool near_root, const Place& at) {
  LinkBytes to;
  if (is_root) {
    to = {.node_in = (at.k - 1) / at.n, .nic_in = (at.n - at.k) / at.n};
    to.bridge = to.node_in;
  } else if (near_root) {
    to = {.node_out = 1 / at.n};
  } else {
    to = {.nic_out = 1 / at.n};
  }
  if (!gathers) {
    std::swap(to.node_in, to.node_out);
    std::swap(to.nic_in, to.nic_out);
  }
  return to;
}

// Behind a host bridge the device's only link also leads to the NICs; elsewhere no bridge is.
LinkBytes through_fabric(const ClusterSpec& spec, LinkBytes bytes) {
  if (spec.node_fabric != NodeFabric::kPcie) {
    bytes.bridge = 0;
    return bytes;
  }
  bytes.node_out += bytes.nic_out;
  bytes.node_in += bytes.nic_in;
  return bytes;
}

std::vector<LinkBytes> use_on_nodes(const ClusterSpec& spec, Kind kind, Algorithm algorithm,
                                    absl::Span<const int> ranks, int root) {
  const std::vector<NodePart> parts = internal::parts_of(spec, ranks);
  const bool has_rails =
      spec.network_fabric == NetworkFabric::kRails && spec.node_fabric != NodeFabric::kPcie;
  const bool aligned = std::ranges::all_of(
      parts, [&parts](const NodePart& part) { return part.nics == parts[0].nics; });
  const int root_node = ranks[root] / spec.ranks_per_node;
  std::vector<LinkBytes> use;
  for (const NodePart& part : parts) {
    const Place at{.n = static_cast<double>(ranks.size()),
                   .m = static_cast<double>(parts.size()),
                   .k = static_cast<double>(part.members),
                   .rails = std::min(part.members, static_cast<int>(part.nics.size())),
                   .changes_rails = has_rails && parts.size() > 1 && !aligned,
                   .has_rails = has_rails};
    for (int member = 0; member < part.members; ++member) {
      const size_t number = use.size();
      LinkBytes bytes;
      switch (algorithm) {
        case Algorithm::kTree:
        case Algorithm::kTreeLl:
        case Algorithm::kHierarchical:
        case Algorithm::kPipeline: bytes = tree(kind, at); break;
        case Algorithm::kMeshPairs:
          // A broadcast and a reduction have two phases, as an all-reduce has.
          bytes =
              tree(kind == Kind::kBroadcast || kind == Kind::kReduce ? Kind::kAllReduce : kind, at);
          break;
        case Algorithm::kMesh:
        case Algorithm::kMeshRing:
        case Algorithm::kMeshNhr:
        case Algorithm::kMeshRhd: bytes = mesh_and_nodes(kind, at); break;
        case Algorithm::kNvls:
        case Algorithm::kNvlsTree: bytes = in_switches(kind, at); break;
        case Algorithm::kDirect:
          bytes = kind == Kind::kAllToAll
                      ? all_to_all(at)
                      : rooted(kind == Kind::kGather, number == static_cast<size_t>(root),
                               ranks[number] / spec.ranks_per_node == root_node, at);
          break;
        default: bytes = ring(kind, at);
      }
      use.push_back(through_fabric(spec, bytes));
    }
  }
  return use;
}

// ---- Tori.

// The mean number of links between two of the ranks, each with itself included.
double mean_distance(const internal::Torus& torus, absl::Span<const int> ranks) {
  double sum = 0;
  const double n = static_cast<double>(ranks.size());
  for (int axis = 0; axis < torus.num_axes(); ++axis) {
    std::vector<double> at(torus.axis(axis));
    for (const int rank : ranks) at[torus.coordinate(rank, axis)] += 1 / n;
    for (int from = 0; from < torus.axis(axis); ++from) {
      for (int to = 0; to < torus.axis(axis); ++to) {
        sum += at[from] * at[to] * torus.distance(axis, from, to);
      }
    }
  }
  return sum;
}

// The links that each byte of an all-gather crosses at a chip, axis by axis, all but one of a
// ring's or all of a line's.
double torus_links(const internal::Torus& torus, absl::Span<const int> ranks) {
  std::vector<internal::TorusAxis> box = internal::analyse_box(torus, ranks);
  std::ranges::stable_sort(box, [](const internal::TorusAxis& a, const internal::TorusAxis& b) {
    return a.members > b.members;
  });
  double links = 0;
  double share = 1;
  for (const internal::TorusAxis& axis : box) {
    links += share * (axis.rings == 2 ? axis.links_of_steps : axis.farthest) / axis.members;
    share /= axis.members;
  }
  return links;
}

std::vector<LinkBytes> use_on_torus(const ClusterSpec& spec, Kind kind, Algorithm algorithm,
                                    absl::Span<const int> ranks) {
  const internal::Torus torus = internal::torus_of(spec);
  const double n = static_cast<double>(ranks.size());
  double links = 0;
  if (algorithm == Algorithm::kTorus) {
    const double ways = kind == Kind::kAllReduce ? 2 : 1;
    const bool rooted = kind == Kind::kBroadcast || kind == Kind::kReduce;
    // A broadcast in pieces crosses each of a tree's n-1 edges with all bytes.
    links = rooted ? (n - 1) / n : ways * torus_links(torus, ranks);
  } else if (algorithm == Algorithm::kDirect) {
    links = mean_distance(torus, ranks);
  } else {
    const double hop = internal::analyse_ring(torus, ranks).links_of_steps / (n - 1);
    const double volume = ring_volume(kind, n);
    links = (volume > 0 ? volume : (n - 1) / n) * hop;
  }
  return std::vector<LinkBytes>(ranks.size(), {.node_out = links, .node_in = links});
}

}  // namespace

LinkBytes& LinkBytes::operator+=(const LinkBytes& other) {
  for (const auto link : kLinksAtRank) this->*link += other.*link;
  return *this;
}

LinkBytes LinkBytes::operator*(double factor) const {
  LinkBytes product = *this;
  for (const auto link : kLinksAtRank) product.*link *= factor;
  return product;
}

double node_bytes_per_second(const ClusterSpec& spec) {
  const double link = spec.node_link.bytes_per_second;
  if (spec.node_fabric == NodeFabric::kMesh) return link * std::max(1, spec.devices_per_node() - 1);
  if (spec.node_fabric != NodeFabric::kTorus) return link;
  int neighbours = 0;
  for (const int length : spec.torus) neighbours += std::min(2, length - 1);
  return link * neighbours;
}

LinkBytes link_rates(const ClusterSpec& spec) {
  const double node = node_bytes_per_second(spec);
  const double part = 1.0 / spec.ranks_per_node;
  const double nic = spec.nic.bytes_per_second * spec.nics_per_node * part;
  const bool has_bridge = spec.node_fabric == NodeFabric::kPcie;
  return {.node_out = node,
          .node_in = node,
          .bridge = has_bridge ? part * internal::bridge_bytes_per_second(spec) : 0,
          .nic_out = nic,
          .nic_in = nic};
}

std::vector<LinkBytes> link_use(const ClusterSpec& spec, CollectiveKind kind,
                                CollectiveAlgorithm algorithm, absl::Span<const int> ranks,
                                int root) {
  if (ranks.size() < 2 || kind == Kind::kBarrier) return std::vector<LinkBytes>(ranks.size());
  return spec.node_fabric == NodeFabric::kTorus ? use_on_torus(spec, kind, algorithm, ranks)
                                                : use_on_nodes(spec, kind, algorithm, ranks, root);
}

std::vector<std::pair<int, LinkBytes>> message_link_use(const ClusterSpec& spec, int source,
                                                        int target) {
  if (source == target) return {};
  if (spec.node_fabric == NodeFabric::kTorus) {
    const int members[] = {source, target};
    const double links = 2 * mean_distance(internal::torus_of(spec), members);
    return {{source, {.node_out = links}}, {target, {.node_in = links}}};
  }
  const int node = spec.ranks_per_node;
  const auto in_node = [&spec](int from, int to) -> std::vector<std::pair<int, LinkBytes>> {
    return {{from, through_fabric(spec, {.node_out = 1, .bridge = 1})}, {to, {.node_in = 1}}};
  };
  if (source / node == target / node) return in_node(source, target);
  const auto nic_of = [&](int rank) {
    return internal::nics_of_local_rank(spec, rank % node).first;
  };
  std::vector<std::pair<int, LinkBytes>> use;
  int leaves_at = source;
  if (spec.network_fabric == NetworkFabric::kRails && spec.node_fabric != NodeFabric::kPcie &&
      nic_of(source) != nic_of(target)) {
    leaves_at = source / node * node + target % node;
    use = in_node(source, leaves_at);
  }
  use.emplace_back(leaves_at, through_fabric(spec, {.nic_out = 1}));
  use.emplace_back(target, through_fabric(spec, {.nic_in = 1}));
  return use;
}

}  // namespace accelerate::simulator
