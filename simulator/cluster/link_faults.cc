#include "simulator/cluster/link_faults.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "simulator/network/network.h"

namespace accelerate::simulator {
namespace {

using Kind = FaultLink::Kind;

// The NICs of the cluster that the link names at those ranks: all that a rank uses, or that of one
// number among its node's or its own.
std::set<int> nics_at(const ClusterSpec& spec, const FaultLink& link,
                      const std::vector<int>& ranks) {
  std::set<int> nics;
  for (const int rank : ranks) {
    const int first_of_node = rank / spec.ranks_per_node * spec.nics_per_node;
    const auto [first, last] = internal::nics_of_local_rank(spec, rank % spec.ranks_per_node);
    for (int nic = first; nic < last; ++nic) {
      const int number = link.of_node ? nic : nic - first;
      if (link.nic < 0 || number == link.nic) nics.insert(first_of_node + nic);
    }
  }
  return nics;
}

// All ranks that use one of the NICs.
std::vector<int> ranks_with(const ClusterSpec& spec, const std::set<int>& nics) {
  std::vector<int> ranks;
  for (int rank = 0; rank < spec.world_size(); ++rank) {
    const int first_of_node = rank / spec.ranks_per_node * spec.nics_per_node;
    const auto [first, last] = internal::nics_of_local_rank(spec, rank % spec.ranks_per_node);
    const auto next = nics.lower_bound(first_of_node + first);
    if (next != nics.end() && *next < first_of_node + last) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> ranks_of_node(const ClusterSpec& spec, int node) {
  std::vector<int> ranks;
  for (int local = 0; local < spec.ranks_per_node; ++local) {
    ranks.push_back(node * spec.ranks_per_node + local);
  }
  return ranks;
}

// At whose links the fault is: of the rank or node of that number, or between two nodes.
std::vector<int> ranks_of(const ClusterSpec& spec, const FaultLink& link, int number) {
  if (link.kind == Kind::kBetween) {
    std::vector<int> ranks = ranks_of_node(spec, std::min(link.from, link.to));
    const std::vector<int> others = ranks_of_node(spec, std::max(link.from, link.to));
    ranks.insert(ranks.end(), others.begin(), others.end());
    return ranks;
  }
  std::vector<int> ranks = link.of_node ? ranks_of_node(spec, number) : std::vector<int>{number};
  // The others whose NIC it is have the fault as well.
  return link.kind == Kind::kNic ? ranks_with(spec, nics_at(spec, link, ranks)) : ranks;
}

std::string problem_of(const ClusterSpec& spec, const FaultLink& link) {
  if (!spec.device) {
    return "communication takes no time in this run, because the cluster names no device, as in "
           "2x4:h100";
  }
  switch (link.kind) {
    case Kind::kNodeLink:
      return spec.devices_per_node() > 1 || spec.node_fabric == NodeFabric::kTorus
                 ? ""
                 : "a node has one device, so nothing crosses its links";
    case Kind::kHostLink:
      return spec.node_fabric == NodeFabric::kPcie
                 ? ""
                 : "collectives and messages cross a host bridge in nodes of PCIe devices alone";
    case Kind::kNic:
    case Kind::kBetween: break;
  }
  if (spec.node_fabric == NodeFabric::kTorus) return "a torus has no NICs";
  if (spec.num_nodes < 2) return "the cluster has one node, so nothing crosses a NIC";
  if (link.kind == Kind::kBetween) {
    return link.from != link.to ? "" : "it is between a node and itself";
  }
  const int per_rank = std::max(1, spec.nics_per_node / spec.ranks_per_node);
  const int nics = link.of_node ? spec.nics_per_node : per_rank;
  if (link.nic < nics) return "";
  return absl::StrCat("there is no NIC ", link.nic, ": a ", link.of_node ? "node" : "rank", " has ",
                      nics, nics == 1 ? ", number 0" : ", from 0 on");
}

}  // namespace

void describe_links(const ClusterSpec& spec, FaultGrounds& grounds) {
  grounds.problem_of_link = [spec](const FaultLink& link) { return problem_of(spec, link); };
  grounds.ranks_of_link = [spec](const FaultLink& link, int number) {
    return ranks_of(spec, link, number);
  };
}

LinkSpeeds::Change link_change(const ClusterSpec& spec, const FaultRule& rule, size_t number,
                               const FaultEffect& effect, const std::vector<int>& ranks,
                               double from_ns, double until_ns) {
  const FaultLink& link = rule.where.link;
  LinkSpeeds::Change change{.rule = number,
                            .text = absl::StrCat("\"", rule.to_string(), "\""),
                            .ranks = ranks,
                            .one_way = effect.kind == FaultKind::kOneWay,
                            .from_ns = from_ns,
                            .until_ns = until_ns,
                            .part = 0};
  // One way: what leaves is lost. A group needs both ways between two nodes.
  const bool comes_in = !change.one_way || link.kind == Kind::kBetween;
  switch (link.kind) {
    case Kind::kNodeLink:
      change.links[kNodeOut] = true;
      change.links[kNodeIn] = comes_in;
      break;
    case Kind::kHostLink: change.links[kBridge] = true; break;
    case Kind::kBetween: change.between = {link.from, link.to}; [[fallthrough]];
    case Kind::kNic: {
      change.links[kNicOut] = true;
      change.links[kNicIn] = comes_in;
      // The ranks that share a rank's NIC are in `ranks`; they may have others, which are whole.
      const std::set<int> nics = nics_at(spec, link, ranks);
      change.nics.assign(nics.begin(), nics.end());
      break;
    }
  }
  if (effect.kind == FaultKind::kSlow) {
    change.part = effect.number;
    change.falls_ns = static_cast<double>(effect.duration_ns);
  } else if (effect.kind == FaultKind::kFlap) {
    change.period_ns = static_cast<double>(effect.duration_ns);
  }
  return change;
}

}  // namespace accelerate::simulator
