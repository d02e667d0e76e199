#include "simulator/network/network.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/log/absl_check.h"
#include "absl/strings/str_cat.h"

namespace accelerate::simulator {
namespace {

// Longer than any run, and small enough to add to a clock.
constexpr double kLongestNs = 0x1p61;

// LibTorch's barrier is an all-reduce of one element.
constexpr int64_t kBarrierBytes = 4;

int64_t bytes_of(CollectiveKind kind, int64_t bytes) {
  return kind == CollectiveKind::kBarrier ? kBarrierBytes : bytes;
}

// By nccl::Algorithm.
constexpr std::array<CollectiveAlgorithm, nccl::kNumAlgorithms> kOfNccl = {
    CollectiveAlgorithm::kTree, CollectiveAlgorithm::kRing, CollectiveAlgorithm::kNvls,
    CollectiveAlgorithm::kNvlsTree, CollectiveAlgorithm::kPat};

int64_t whole_ns(double ns) { return static_cast<int64_t>(std::llround(std::min(ns, kLongestNs))); }

}  // namespace

absl::string_view CollectiveTime::name() const {
  static const auto* names = new std::vector<std::string>([] {
    std::vector<std::string> names;
    for (const CollectiveAlgorithm algorithm : values<CollectiveAlgorithm>()) {
      for (const nccl::Protocol each : values<nccl::Protocol>()) {
        names.push_back(absl::StrCat(to_string(algorithm), " ", to_string(each)));
      }
    }
    return names;
  }());
  if (!protocol.has_value()) return to_string(algorithm);
  return (*names)[static_cast<size_t>(algorithm) * nccl::kNumProtocols +
                  static_cast<size_t>(*protocol)];
}

double bus_factor(CollectiveKind kind, int ranks) {
  const double n = ranks;
  switch (kind) {
    case CollectiveKind::kAllReduce: return 2 * (n - 1) / n;
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce: return 1;
    case CollectiveKind::kBarrier: return 0;
    default: return (n - 1) / n;
  }
}

LinkModel link_in_node(const ClusterSpec& spec) {
  // A bridge is never narrower than one of its links.
  return {spec.node_link.bytes_per_second, internal::latency_in_node_ns(spec)};
}

// Hashes a sample of long rank lists; the comparison looks at every rank.
size_t Network::HashRanks::operator()(absl::Span<const int> ranks) const {
  constexpr size_t kSamples = 64;
  uint64_t hash = ranks.size();
  const size_t stride = ranks.size() / kSamples + 1;
  for (size_t i = 0; i < ranks.size(); i += stride) {
    hash = (hash ^ static_cast<uint64_t>(ranks[i])) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 32;
  }
  return static_cast<size_t>(hash);
}

// Links of a cluster of nodes, in this order:
//
//   device  rank --> switch or bridge (2*rank), and back (2*rank + 1)      kSwitch, kPcie
//   bridge  one for each node                                              kPcie
//   NIC     node --> network (2*nic), and back (2*nic + 1)
//   mesh    rank --> rank of the same node, numbered at first use          kMesh
Network::Network(const ClusterSpec& spec) : spec_(spec), links_(spec) {
  if (!spec_.device.has_value()) return;
  if (spec_.device->efficiency == Efficiency::kMeasured && nccl::applies_to(spec_)) {
    nccl_ = internal::nccl_machine(spec_);
  }
  library_ = collective_library(spec_);
  links_ = nccl_.has_value() ? internal::with_links_of(*nccl_, spec_)
                             : internal::with_links_of_library(spec_);
  const double link = links_.node_link.bytes_per_second;
  if (spec_.node_fabric == NodeFabric::kTorus) {
    torus_ = internal::torus_of(spec_);
    link_bytes_per_second_.assign(torus_->num_links(), link);
    return;
  }
  const size_t world_size = spec_.world_size();
  if (spec_.node_fabric != NodeFabric::kMesh) link_bytes_per_second_.assign(2 * world_size, link);
  first_bridge_ = static_cast<int>(link_bytes_per_second_.size());
  if (spec_.node_fabric == NodeFabric::kPcie) {
    link_bytes_per_second_.resize(first_bridge_ + spec_.num_nodes,
                                  internal::bridge_bytes_per_second(spec_));
  }
  first_nic_ = static_cast<int>(link_bytes_per_second_.size());
  if (spec_.num_nodes > 1) {
    link_bytes_per_second_.resize(
        first_nic_ + static_cast<size_t>(2) * spec_.num_nodes * spec_.nics_per_node,
        links_.nic.bytes_per_second);
  }
}

const CollectiveCosts& Network::costs_of(absl::Span<const int> ranks, Beside beside) const {
  auto& known = costs_[static_cast<size_t>(beside)];
  if (const auto found = known.find(ranks); found != known.end()) return found->second;
  ABSL_CHECK(ranks.front() >= 0 && ranks.back() < spec_.world_size())
      << "ranks " << ranks.front() << " to " << ranks.back() << " of " << spec_.to_string();
  const internal::Torus* torus = torus_.has_value() ? &*torus_ : nullptr;
  ClusterSpec spec = spec_;
  if (beside == Beside::kItsAxis && torus == nullptr) {
    spec.nic.bytes_per_second *= internal::share_of_nics(spec_, ranks);
  }
  CollectiveCosts costs;
  if (nccl_.has_value()) {
    costs = internal::nccl_costs(spec, ranks);
  } else {
    costs.forms = internal::closed_forms(spec, torus, ranks);
  }
  return known.emplace(std::vector<int>(ranks.begin(), ranks.end()), std::move(costs))
      .first->second;
}

CollectiveTime Network::collective(CollectiveKind kind, absl::Span<const int> ranks, int64_t bytes,
                                   nccl::Reduction reduction, Beside beside) const {
  if (!spec_.device.has_value() || ranks.size() < 2) return {};
  const CollectiveCosts& costs = costs_of(ranks, beside);
  if (const auto modelled = internal::nccl_collective(kind); costs.nccl && modelled) {
    const nccl::Tuning::Choice choice =
        costs.nccl->choose(*modelled, bytes_of(kind, bytes), reduction);
    return {.ns = whole_ns(1000 * choice.us),
            .algorithm = kOfNccl[static_cast<size_t>(choice.algorithm)],
            .protocol = choice.protocol,
            .channels = choice.channels};
  }
  CollectiveAlgorithm best = CollectiveAlgorithm::kNone;
  double best_ns = 0;
  for (const ClosedForm& form : costs.forms[static_cast<size_t>(kind)]) {
    const double ns = form.cost.ns(static_cast<double>(bytes));
    if (best != CollectiveAlgorithm::kNone && ns >= best_ns) continue;
    best = form.algorithm;
    best_ns = ns;
  }
  return {.ns = whole_ns(best_ns), .algorithm = best};
}

int64_t Network::collective_ns(CollectiveKind kind, CollectiveAlgorithm algorithm,
                               absl::Span<const int> ranks, int64_t bytes) const {
  if (!spec_.device.has_value() || ranks.size() < 2) return 0;
  const CollectiveCosts& costs = costs_of(ranks);
  if (const auto modelled = internal::nccl_collective(kind); costs.nccl && modelled) {
    const auto each = std::ranges::find(kOfNccl, algorithm) - kOfNccl.begin();
    if (each == std::ssize(kOfNccl)) return -1;
    const auto choice =
        costs.nccl->choose(*modelled, static_cast<nccl::Algorithm>(each), bytes_of(kind, bytes));
    return choice.has_value() ? whole_ns(1000 * choice->us) : -1;
  }
  for (const ClosedForm& form : costs.forms[static_cast<size_t>(kind)]) {
    if (form.algorithm == algorithm) return whole_ns(form.cost.ns(static_cast<double>(bytes)));
  }
  return -1;
}

int Network::mesh_link(int source, int target) const {
  const int64_t key = static_cast<int64_t>(source) * spec_.world_size() + target;
  const auto [entry, inserted] =
      mesh_links_.emplace(key, static_cast<int>(link_bytes_per_second_.size()));
  if (inserted) {
    link_bytes_per_second_.push_back(links_.node_link.bytes_per_second);
    mesh_sources_.push_back(source);
  }
  return entry->second;
}

Network::LinkOwners Network::owners_of(int link) const {
  if (torus_.has_value()) {
    return {.link = kNodeOut, .ranks = {link / (2 * torus_->num_axes())}};
  }
  if (link < first_bridge_) {
    return {.link = link % 2 == 0 ? size_t{kNodeOut} : size_t{kNodeIn}, .ranks = {link / 2}};
  }
  const int first_mesh =
      static_cast<int>(link_bytes_per_second_.size()) - static_cast<int>(mesh_sources_.size());
  if (link >= first_mesh) return {.link = kNodeOut, .ranks = {mesh_sources_[link - first_mesh]}};
  LinkOwners owners;
  int node = link - first_bridge_;
  if (link < first_nic_) {
    owners.link = kBridge;
  } else {
    owners.link = (link - first_nic_) % 2 == 0 ? kNicOut : kNicIn;
    owners.nic = (link - first_nic_) / 2;
    node = owners.nic / spec_.nics_per_node;
  }
  for (int local = 0; local < spec_.ranks_per_node; ++local) {
    const auto [first, last] = internal::nics_of_local_rank(spec_, local);
    const int nic = owners.nic - node * spec_.nics_per_node;
    const bool has_part = owners.nic < 0 || (nic >= first && nic < last);
    if (has_part) owners.ranks.push_back(node * spec_.ranks_per_node + local);
  }
  return owners;
}

int Network::nic_of(int rank) const {
  return internal::nics_of_local_rank(spec_, rank % spec_.ranks_per_node).first;
}

void Network::append_in_node(int source, int target, Route& route) const {
  if (source == target) return;
  route.latency_ns += internal::latency_in_node_ns(spec_);
  if (spec_.node_fabric == NodeFabric::kMesh) {
    route.links.push_back(mesh_link(source, target));
    return;
  }
  route.links.push_back(2 * source);
  if (spec_.node_fabric == NodeFabric::kPcie) {
    route.links.push_back(first_bridge_ + source / spec_.ranks_per_node);
  }
  route.links.push_back(2 * target + 1);
}

// On rails the message leaves the node on the target's rail: through the bridge, or through the
// device of the source's node that belongs to that rail.
void Network::append_between_nodes(int source, int target, Route& route) const {
  const int source_node = source / spec_.ranks_per_node;
  const int target_node = target / spec_.ranks_per_node;
  const bool pcie = spec_.node_fabric == NodeFabric::kPcie;
  const int in = nic_of(target);
  int out = nic_of(source);
  if (spec_.network_fabric == NetworkFabric::kRails && out != in) {
    if (!pcie) {
      append_in_node(source, source_node * spec_.ranks_per_node + target % spec_.ranks_per_node,
                     route);
    }
    out = in;
  }
  if (pcie) route.links.push_back(2 * source);
  route.links.push_back(first_nic_ + 2 * (source_node * spec_.nics_per_node + out));
  route.links.push_back(first_nic_ + 2 * (target_node * spec_.nics_per_node + in) + 1);
  if (pcie) route.links.push_back(2 * target + 1);
  route.latency_ns += internal::latency_between_nodes_ns(spec_);
}

Network::Route Network::route(int source, int target) const {
  Route route;
  if (!spec_.device.has_value() || source == target) return route;
  ABSL_CHECK(source >= 0 && source < spec_.world_size() && target >= 0 &&
             target < spec_.world_size())
      << "a message from rank " << source << " to " << target << " of " << spec_.to_string();
  if (torus_.has_value()) {
    route.links = torus_->route(source, target);
    route.latency_ns = static_cast<int64_t>(route.links.size()) * spec_.node_link.latency_ns;
  } else if (source / spec_.ranks_per_node == target / spec_.ranks_per_node) {
    append_in_node(source, target, route);
  } else {
    append_between_nodes(source, target, route);
  }
  const bool one_node = source / spec_.ranks_per_node == target / spec_.ranks_per_node;
  if (nccl_.has_value()) {
    route.latency_ns = whole_ns(1000 * nccl::message_latency_us(*nccl_, one_node));
  } else if (library_ == CollectiveLibrary::kRccl) {
    route.latency_ns = whole_ns(internal::rccl_message_ns(spec_, one_node));
  }
  return route;
}

}  // namespace accelerate::simulator
