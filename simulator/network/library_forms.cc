#include <algorithm>
#include <bit>

#include "simulator/network/closed_forms.h"

namespace accelerate::simulator {
namespace {

using Algorithm = CollectiveAlgorithm;
using internal::Placement;

// ---- RCCL, the fork of NCCL by AMD. Figures are those of its tuning model at commit 0cbce2a of
// github.com/ROCm/rccl (NCCL 2.21.5): src/graph/tuning.cc for times, topo.h for links,
// rome_models.cc for which row an MI300X takes. Microseconds.

constexpr double kUs = 1000;

// By RCCL one link of an MI300X reaches 48 of its 64 GB/s.
constexpr double kShareOfLink = 48.0 / 64;

struct RcclLatencies {
  double ll = 0;
  double simple = 0;
};

struct RcclModel {
  RcclLatencies ring_in_node, ring_between;
  RcclLatencies tree_in_node, tree_between;
  /// Shares of the bandwidth of the bus. A ring with Simple has all of it.
  double ring_ll = 0;
  double tree_ll = 0;
  double tree_on_two_nodes = 0;
  double tree_on_more = 0;
};

constexpr RcclLatencies kRcclBase = {12.0, 17.0};

// Row 5: nodes of eight, with no NICs (one node), eight or sixteen. Two of its figures only steer
// the choice, so that others stand in (estimates): 320 us for a ring's step with Simple between
// nodes, and a tree's 0.11 on two nodes.
constexpr RcclModel kWholeNodes = {.ring_in_node = {0.8, 2.1},
                                   .ring_between = {9.5, 15.1},
                                   .tree_in_node = {0.9, 2.3},
                                   .tree_between = {10.5, 25.0},
                                   .ring_ll = 0.08,
                                   .tree_ll = 0.06,
                                   .tree_on_two_nodes = 0.59,
                                   .tree_on_more = 0.59};
// Row 0: all other groups.
constexpr RcclModel kOtherGroups = {.ring_in_node = {0.8, 3.6},
                                    .ring_between = {9.5, 15.1},
                                    .tree_in_node = {0.8, 2.5},
                                    .tree_between = {11.8, 20.8},
                                    .ring_ll = 0.04,
                                    .tree_ll = 0.04,
                                    .tree_on_two_nodes = 0.91,
                                    .tree_on_more = 0.95};

// What AMD's CPUs need to post a message; Simple needs three times as much.
constexpr double kPostingUs = 2;
// A broadcast and a reduction in one node are that much faster with LL.
constexpr double kRootedLl = 1.65;

bool has_whole_nodes(const ClusterSpec& spec, const Placement& placement) {
  constexpr int kNode = 8;
  return placement.uniform() && placement.most_in_node == kNode &&
         (placement.nodes == 1 || spec.nics_per_node == kNode || spec.nics_per_node == 2 * kNode);
}

// What a message between nodes takes beyond two NICs of a microsecond and three switches, which is
// this folder's addition, as for NCCL.
double slower_network_us(const ClusterSpec& spec) {
  constexpr double kUsual = 2.9;
  return std::max(0.0, internal::latency_between_nodes_ns(spec) / kUs - kUsual);
}

class Rccl {
 public:
  Rccl(const ClusterSpec& spec, const Placement& placement, ClosedForms& forms)
      : placement_(placement),
        forms_(forms),
        is_whole_(has_whole_nodes(spec, placement)),
        model_(is_whole_ ? kWholeNodes : kOtherGroups),
        extra_us_(slower_network_us(spec)),
        bus_(internal::ns_per_byte(internal::ring_bandwidth(spec, placement))) {}

  void add() const {
    add_ring(Algorithm::kRing, kRcclBase.simple, model_.ring_in_node.simple,
             model_.ring_between.simple + 2 * extra_us_, 3 * kPostingUs, bus_);
    // In one node a ring with LL is never slower than a tree with LL; with Simple a tree is off.
    if (!one_node()) {
      const double share = placement_.nodes == 2 ? model_.tree_on_two_nodes : model_.tree_on_more;
      add_tree(Algorithm::kTree, kRcclBase.simple, model_.tree_in_node.simple,
               model_.tree_between.simple + 2 * extra_us_, bus_ / share);
    }
    add_ring(Algorithm::kRingLl, kRcclBase.ll, model_.ring_in_node.ll,
             model_.ring_between.ll + extra_us_, kPostingUs, bus_ / model_.ring_ll);
    if (!one_node()) {
      add_tree(Algorithm::kTreeLl, kRcclBase.ll, model_.tree_in_node.ll,
               model_.tree_between.ll + extra_us_, bus_ / model_.tree_ll);
    }
  }

 private:
  bool one_node() const { return placement_.nodes == 1; }

  void add_ring(Algorithm algorithm, double base, double in_node, double between, double posting,
                double per_byte) const {
    const double n = placement_.members;
    const double m = placement_.nodes;
    const double step = one_node() ? in_node : std::max(in_node, posting);
    const auto latency = [&](double steps, double crossings) {
      crossings = one_node() ? 0 : std::min(crossings, steps);
      return kUs * (base + (steps - crossings) * step + crossings * between);
    };
    internal::add_gathering(forms_, algorithm, {latency(n - 1, m - 1), (n - 1) / n * per_byte});
    internal::add_all_reduce(forms_, algorithm,
                             {latency(2 * (n - 1), 2 * m), 2 * (n - 1) / n * per_byte});
    // Rings that pass the GPUs in the same order need one step. Others need all of them, and with
    // Simple take a tree's.
    const bool is_ll = algorithm == Algorithm::kRingLl;
    double hop = one_node() ? in_node : between;
    if (!is_whole_ && !is_ll) {
      hop = one_node() ? model_.tree_in_node.simple : model_.tree_between.simple + 2 * extra_us_;
    }
    internal::add_rooted(forms_, algorithm,
                         {kUs * (base + (is_whole_ ? 1 : n) * hop),
                          one_node() && is_ll ? per_byte / kRootedLl : per_byte});
  }

  void add_tree(Algorithm algorithm, double base, double in_node, double between,
                double per_byte) const {
    const double chain = placement_.members / placement_.nodes - 1;
    const double depth = internal::log2_down(placement_.nodes);
    internal::add_all_reduce(
        forms_, algorithm, {kUs * (base + 2 * (chain * in_node + depth * between)), 2 * per_byte});
  }

  const Placement& placement_;
  ClosedForms& forms_;
  const bool is_whole_;
  const RcclModel& model_;
  const double extra_us_;
  const double bus_;
};

// ---- HCCL and HCL: a full mesh in a node, where each member sends every other its part at once.

// What the stages of a collective take: a step and a byte in a node and between nodes. With one
// member a node, the mesh takes nothing.
struct Stages {
  Stages(const ClusterSpec& spec, const Placement& placement)
      : m(placement.nodes), k(placement.most_in_node), n(placement.members) {
    if (k > 1) {
      x = static_cast<double>(internal::latency_in_node_ns(spec));
      link = internal::ns_per_byte(spec.node_link.bytes_per_second);
    }
    if (m > 1) {
      crossing = internal::crossing_ns(spec, placement);
      // A member's part of the NICs of its node.
      nic = k * internal::ns_per_byte(placement.fewest_nics * spec.nic.bytes_per_second);
      if (internal::changes_rails(spec, placement)) {
        nic = std::max(nic, internal::ns_per_byte(spec.node_link.bytes_per_second));
      }
    }
  }

  double m, k, n;
  double x = 0;
  double link = 0;
  double crossing = 0;
  double nic = 0;
};

// Both libraries in one node: a broadcast is a scatter and an all-gather, a reduction a
// reduce-scatter and a gather.
void add_mesh(const Stages& stages, ClosedForms& forms) {
  const CollectiveCost step = {stages.x, stages.link / stages.n};
  internal::add_phases(forms, Algorithm::kMesh, step);
  internal::add_rooted(forms, Algorithm::kMesh, {2 * step.latency_ns, 2 * step.ns_per_byte});
}

// Mirrors: the times of docs/zh/user_guide/coll_algo_intro/*.md of gitcode.com/cann/hccl (mirror
// mirror-cann/hccl, commit e1a8dc9), and what SelectAlgoTypeFor... of coll_alg_operator.cc compare
// (mirror yzh1703456/cann-hccl, commit 9aeddc0). A non-uniform Bruck (NB) takes the time of NHR.
void add_hccl(const ClusterSpec& spec, const Placement& placement, ClosedForms& forms) {
  const Stages at(spec, placement);
  if (placement.nodes == 1) return add_mesh(at, forms);
  const double part = (at.m - 1) / at.m;
  // Members of a node have all-gathered first, so that each of them takes everything from the
  // other nodes; before an all-reduce between nodes each of them has a k-th.
  const auto add = [&](Algorithm algorithm, double steps, double bytes) {
    internal::add_gathering(forms, algorithm,
                            {at.x + steps * at.crossing, at.link / at.n + bytes * at.nic});
    internal::add_all_reduce(
        forms, algorithm,
        {2 * (at.x + steps * at.crossing), 2 / at.k * (at.link + bytes * at.nic)});
  };
  const auto add_root = [&](Algorithm algorithm, double steps, double bytes) {
    internal::add_rooted(forms, algorithm,
                         {2 * at.x + steps * at.crossing, (2 * at.link + bytes * at.nic) / at.k});
  };
  const int up = internal::log2_up(placement.nodes);
  const bool is_power = std::has_single_bit(static_cast<unsigned>(placement.nodes));
  add(Algorithm::kMeshRing, at.m - 1, part);
  add_root(Algorithm::kMeshRing, 2 * (at.m - 1), 2 * part);
  add(Algorithm::kMeshNhr, up, part);
  // Other numbers of nodes merge some first, and give them the result in the end.
  add(Algorithm::kMeshRhd, up, is_power ? part : 1 + part);
  add_root(Algorithm::kMeshRhd, is_power ? 2 * up : 1 + 2 * internal::log2_down(placement.nodes),
           is_power ? 2 * part : 1 + 2 * part);
  if (placement.most_in_node == 1) return;
  // A ring between nodes; what has arrived is passed on in the node at the same time. The slower
  // of the two links, and the slower of the two steps, is an upper bound of the slower of both.
  internal::add_phases(forms, Algorithm::kPipeline,
                       {(at.m - 1) * std::max(at.crossing, at.x) + at.x,
                        ((at.m - 1) * std::max(at.nic, at.link) + at.link) / at.n});
}

// Mirrors: hcl/src/collective_interface/collectives/all_reduce.cpp at commit 54fed3a of
// github.com/HabanaAI/HCL: node after node, a reduce-scatter in the mesh and a message to the peer
// in that node, which overlap those of the next node; the all-gather in reverse.
void add_hcl(const ClusterSpec& spec, const Placement& placement, ClosedForms& forms) {
  const Stages at(spec, placement);
  if (placement.nodes == 1) return add_mesh(at, forms);
  const CollectiveCost phase = {
      at.x + at.crossing, std::max(at.m * at.link + at.nic, at.link + (at.m - 1) * at.nic) / at.n};
  internal::add_phases(forms, Algorithm::kMeshPairs, phase);
  internal::add_rooted(forms, Algorithm::kMeshPairs, {2 * phase.latency_ns, 2 * phase.ns_per_byte});
}

}  // namespace

CollectiveLibrary collective_library(const ClusterSpec& spec) {
  if (spec.node_fabric != NodeFabric::kMesh || !spec.device.has_value()) {
    return CollectiveLibrary::kAny;
  }
  if (spec.device->name == "mi300x") return CollectiveLibrary::kRccl;
  if (spec.device->family == "npu") return CollectiveLibrary::kHccl;
  if (spec.device->family == "hpu") return CollectiveLibrary::kHcl;
  return CollectiveLibrary::kAny;
}

namespace internal {

ClusterSpec with_links_of_library(ClusterSpec spec) {
  if (collective_library(spec) == CollectiveLibrary::kRccl) {
    spec.node_link.bytes_per_second *= kShareOfLink;
  }
  return spec;
}

double rccl_message_ns(const ClusterSpec& spec, bool one_node) {
  if (one_node) return kUs * (kRcclBase.ll + kOtherGroups.ring_in_node.ll);
  return kUs * (kRcclBase.ll + kOtherGroups.ring_between.ll + slower_network_us(spec));
}

void add_forms_of_library(const ClusterSpec& spec, const Placement& placement, ClosedForms& forms) {
  switch (collective_library(spec)) {
    case CollectiveLibrary::kRccl: return Rccl(spec, placement, forms).add();
    case CollectiveLibrary::kHccl: return add_hccl(spec, placement, forms);
    case CollectiveLibrary::kHcl: return add_hcl(spec, placement, forms);
    case CollectiveLibrary::kAny: break;
  }
}

}  // namespace internal
}  // namespace accelerate::simulator
