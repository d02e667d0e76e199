#include "simulator/network/nccl/model.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace accelerate::simulator::nccl {
namespace {

constexpr bool is_rooted(Collective collective) {
  return collective == Collective::kBroadcast || collective == Collective::kReduce;
}

double log2_down(int count) { return std::bit_width(static_cast<unsigned>(count)) - 1; }

// Computes the table of one group.
class Tuner {
 public:
  Tuner(const Machine& machine, const Shape& shape, const Graphs& graphs)
      : machine_(machine),
        constants_(constants_of(machine.version)),
        graphs_(graphs),
        generation_(static_cast<size_t>(machine.generation)),
        by_nodes_(std::min(shape.nodes, 3) - 1),
        nodes_(shape.nodes),
        n_(shape.ranks),
        per_node_(n_ / nodes_),
        whole_per_node_(shape.ranks / shape.nodes) {}

  Tuning::Entry entry(Collective collective, Algorithm algorithm, Protocol protocol) const {
    if (!exists(collective, algorithm, protocol)) return {};
    const double bandwidth = algorithm_bandwidth(collective, algorithm, protocol);
    if (bandwidth <= 0) return {};
    return {latency_us(collective, algorithm, protocol), bandwidth};
  }

 private:
  bool at_least(int version) const { return machine_.version >= version; }
  bool one_node() const { return nodes_ == 1; }

  bool exists(Collective collective, Algorithm algorithm, Protocol protocol) const {
    if (algorithm == Algorithm::kRing) return true;
    if (is_rooted(collective)) return false;
    const bool is_simple = protocol == Protocol::kSimple;
    const bool reduces_all = collective == Collective::kAllReduce;
    switch (algorithm) {
      case Algorithm::kTree: return reduces_all;
      // Between nodes only with CollNet.
      case Algorithm::kNvls: return is_simple && one_node() && graphs_.nvls.channels >= 2;
      case Algorithm::kNvlsTree:
        return is_simple && !one_node() && reduces_all && graphs_.nvls.channels >= 2;
      // Every rank has a node of its own.
      default: return is_simple && !reduces_all && constants_.pat_share > 0 && nodes_ == n_;
    }
  }

  // The bandwidth of a channel: up to two nodes, the network hides behind the node.
  double channel(const Graph& graph) const {
    return nodes_ <= 2 ? graph.in_node : graph.between_nodes;
  }

  double bus_bandwidth(Collective collective, Algorithm algorithm, Protocol protocol) const {
    switch (algorithm) {
      case Algorithm::kRing: return ring_bandwidth(collective, protocol);
      case Algorithm::kTree: return tree_bandwidth(protocol);
      case Algorithm::kPat: return constants_.pat_share * pipes(graphs_.ring);
      default: return graphs_.nvls.channels * nvls_channel(collective, algorithm);
    }
  }

  double pipes(const Graph& graph) const { return graph.channels * channel(graph); }

  double most_of_ll() const {
    if (one_node()) return constants_.ll_on_one_node[generation_];
    return (machine_.has_amd_cpus ? constants_.ll_with_amd : constants_.ll_with_intel)[by_nodes_];
  }

  double ring_bandwidth(Collective collective, Protocol protocol) const {
    const double bandwidth = pipes(graphs_.ring);
    switch (protocol) {
      case Protocol::kLl: {
        double share = 1.0 / 2;
        if (!at_least(22105)) {
          const bool is_slow = !one_node() || collective == Collective::kAllReduce ||
                               collective == Collective::kReduce;
          share = is_slow ? 1.0 / 4 : 1.0 / 3;
        }
        return std::min(most_of_ll(), share * bandwidth);
      }
      case Protocol::kLl128: {
        const double share = !at_least(22304) && per_node_ < 2 ? 0.7 : 0.92;
        return std::min(share * bandwidth,
                        graphs_.ring.channels * constants_.ring_ll128[generation_][by_nodes_]);
      }
      default: return bandwidth;
    }
  }

  double tree_bandwidth(Protocol protocol) const {
    const int channels = graphs_.tree.channels;
    double bandwidth =
        std::min(0.92 * pipes(graphs_.tree), channels * constants_.tree[generation_][by_nodes_]);
    if (protocol == Protocol::kLl) bandwidth = std::min(bandwidth / 3.8, most_of_ll());
    if (protocol == Protocol::kLl128) {
      bandwidth = std::min(bandwidth * (one_node() ? 7.0 / 9 : 120.0 / 128),
                           channels * constants_.tree_ll128[generation_][by_nodes_]);
    }
    return graphs_.trees_are_chains ? 0.85 * bandwidth : bandwidth;
  }

  double nvls_channel(Collective collective, Algorithm algorithm) const {
    const double heads = graphs_.nvls.channels;
    const double in_node = graphs_.nvls.in_node;
    const double between = graphs_.nvls.between_nodes;
    const bool is_tree = algorithm == Algorithm::kNvlsTree;
    const bool reduces_all = collective == Collective::kAllReduce;
    if (at_least(22803)) {
      double pulled = in_node * constants_.nvls_share[generation_] * (heads - 1) / heads;
      pulled *= reduces_all ? 2 : (per_node_ - 1) / per_node_;
      if (!is_tree) return std::min(pulled, between);
      return std::min({pulled, nodes_ <= 2 ? 2 * between : between,
                       constants_.nvls_tree[generation_][by_nodes_]});
    }
    if (is_tree) return std::min(in_node, nodes_ <= 2 ? between : between / 2);
    if (at_least(22703) && !reduces_all) {
      return std::min(in_node * (per_node_ - 1) / per_node_, 0.9 * between);
    }
    return std::min(in_node, between);
  }

  double steps(Collective collective) const {
    if (collective == Collective::kAllReduce) return 2 * (n_ - 1);
    return is_rooted(collective) ? n_ : n_ - 1;
  }

  double algorithm_bandwidth(Collective collective, Algorithm algorithm, Protocol protocol) const {
    const double bus = bus_bandwidth(collective, algorithm, protocol);
    const bool is_nvls = algorithm == Algorithm::kNvls || algorithm == Algorithm::kNvlsTree;
    if (algorithm == Algorithm::kRing) return bus * n_ / steps(collective);
    if (algorithm == Algorithm::kTree) return bus / 2;
    if (collective != Collective::kAllReduce && at_least(22304)) return bus;
    if (is_nvls && at_least(22803)) return bus * n_ / steps(collective);
    return is_nvls ? bus * 5 / 6 : bus / 2;
  }

  double latency_us(Collective collective, Algorithm algorithm, Protocol protocol) const {
    const auto a = static_cast<size_t>(algorithm);
    const auto p = static_cast<size_t>(protocol);
    const bool is_simple = protocol == Protocol::kSimple;
    const double base = constants_.base_latency_us[a][p];
    const double in_node = constants_.node_latency_us[a][p];
    // With a rank a node, latencies are as exposed as those of a tree. Simple flushes.
    const bool is_exposed = nodes_ == n_ && at_least(22304);
    constexpr auto kTree = static_cast<size_t>(Algorithm::kTree);
    const double between = constants_.network_latency_us[is_exposed ? kTree : a][p] +
                           machine_.extra_network_us * (is_simple ? 2 : 1);
    switch (algorithm) {
      case Algorithm::kRing:
        return base + (is_rooted(collective) ? chain_latency_us(protocol)
                                             : ring_latency_us(collective, protocol, between));
      case Algorithm::kTree:
        return base + 2 * ((whole_per_node_ - 1) * in_node + log2_down(nodes_) * between);
      case Algorithm::kNvls: return in_node;
      case Algorithm::kNvlsTree: return base + in_node + 2 * log2_down(nodes_) * between;
      default: return base + log2_down(nodes_) * between / 3.5 + 2.8 * n_;
    }
  }

  // Steps inside the nodes also wait for the CPU, which posts messages to the NIC.
  double ring_latency_us(Collective collective, Protocol protocol, double between) const {
    double in_node =
        constants_
            .node_latency_us[static_cast<size_t>(Algorithm::kRing)][static_cast<size_t>(protocol)];
    double crossings = 0;
    if (!one_node()) {
      const double overhead = machine_.has_amd_cpus ? 2 : 1;
      in_node = std::max(in_node, protocol == Protocol::kSimple ? 3 * overhead : overhead);
      const bool reduces_all = collective == Collective::kAllReduce;
      crossings = reduces_all ? 2 * (nodes_ - 1) : nodes_ - 1;
      if (reduces_all && !at_least(22304)) crossings = 2 * nodes_;
    }
    return (steps(collective) - crossings) * in_node + crossings * between;
  }

  double chain_latency_us(Protocol protocol) const {
    const auto p = static_cast<size_t>(protocol);
    const bool is_simple = protocol == Protocol::kSimple;
    const ByAlgorithm& steps =
        one_node() ? constants_.node_latency_us : constants_.network_latency_us;
    const double extra = one_node() ? 0 : machine_.extra_network_us * (is_simple ? 2 : 1);
    if (graphs_.rings_are_alike) return steps[static_cast<size_t>(Algorithm::kRing)][p] + extra;
    const auto of = is_simple ? Algorithm::kTree : Algorithm::kRing;
    return n_ * (steps[static_cast<size_t>(of)][p] + extra);
  }

  const Machine& machine_;
  const Constants& constants_;
  const Graphs& graphs_;
  const size_t generation_;
  const size_t by_nodes_;
  const int nodes_;
  const double n_;
  const double per_node_;
  const int whole_per_node_;
};

// floor(log2(bytes / 64)), as NCCL has it: 0 below 128 bytes.
int64_t size_class(int64_t bytes) {
  return bytes < 64 ? 0 : std::bit_width(static_cast<uint64_t>(bytes) >> 6) - 1;
}

}  // namespace

Tuning::Tuning(const Machine& machine, const Shape& shape)
    : Tuning(machine, shape, search(machine, shape)) {}

Tuning::Tuning(const Machine& machine, const Shape& shape, const Graphs& graphs)
    : ranks_(shape.ranks),
      nodes_(shape.nodes),
      version_(machine.version),
      generation_(machine.generation),
      graphs_(graphs) {
  const Tuner tuner(machine, shape, graphs);
  for (size_t c = 0; c < kNumCollectives; ++c) {
    for (size_t a = 0; a < kNumAlgorithms; ++a) {
      for (size_t p = 0; p < kNumProtocols; ++p) {
        entries_[c][a][p] = tuner.entry(static_cast<Collective>(c), static_cast<Algorithm>(a),
                                        static_cast<Protocol>(p));
      }
    }
  }
}

std::optional<double> Tuning::us(Collective collective, Algorithm algorithm, Protocol protocol,
                                 int64_t bytes, Reduction reduction) const {
  const Entry& each = entry(collective, algorithm, protocol);
  if (each.gb_per_second == 0) return std::nullopt;
  const bool is_nvls = algorithm == Algorithm::kNvls || algorithm == Algorithm::kNvlsTree;
  const bool reduces = collective != Collective::kAllGather && collective != Collective::kBroadcast;
  if (is_nvls && reduces && reduction != Reduction::kInSwitches) return std::nullopt;
  if (algorithm == Algorithm::kPat && reduces && reduction == Reduction::kScaled) {
    return std::nullopt;
  }
  double latency = each.latency_us;
  double bandwidth = each.gb_per_second;
  const bool reduces_all = collective == Collective::kAllReduce;
  const auto size = static_cast<size_t>(size_class(bytes));
  const size_t corrections = algorithm == Algorithm::kTree ? kNumTreeCorrections - 1
                             : algorithm == Algorithm::kNvlsTree && version_ >= 22902 &&
                                     generation_ == Generation::kBlackwell
                                 ? kNumTreeCorrections
                                 : 0;
  if (reduces_all && size < corrections) {
    bandwidth *= kTreeCorrection[static_cast<size_t>(protocol)][size];
  }
  // Rings of large messages on several nodes.
  constexpr int64_t kLargePart = 64;
  if (reduces_all && algorithm == Algorithm::kRing && protocol == Protocol::kSimple && nodes_ > 1 &&
      bytes / (int64_t{graphs_.channels} * ranks_) >= kLargePart) {
    latency *= 1.4;
  }
  return latency + static_cast<double>(bytes) / (1000 * bandwidth);
}

Tuning::Choice Tuning::choose(Collective collective, int64_t bytes, Reduction reduction) const {
  Choice best = {.us = std::numeric_limits<double>::infinity()};
  for (size_t a = 0; a < kNumAlgorithms; ++a) {
    const auto each = choose(collective, static_cast<Algorithm>(a), bytes, reduction);
    if (each.has_value() && each->us < best.us) best = *each;
  }
  return best;
}

std::optional<Tuning::Choice> Tuning::choose(Collective collective, Algorithm algorithm,
                                             int64_t bytes, Reduction reduction) const {
  std::optional<Choice> best;
  for (size_t p = 0; p < kNumProtocols; ++p) {
    const auto protocol = static_cast<Protocol>(p);
    const std::optional<double> each = us(collective, algorithm, protocol, bytes, reduction);
    if (!each.has_value() || (best.has_value() && *each >= best->us)) continue;
    best = {algorithm, protocol, *each, channels(algorithm, protocol, bytes)};
  }
  return best;
}

// Fewer channels where a thread would have too few bytes.
int Tuning::channels(Algorithm algorithm, Protocol protocol, int64_t bytes) const {
  if (algorithm == Algorithm::kNvls || algorithm == Algorithm::kNvlsTree) {
    return graphs_.nvls_channels;
  }
  // Rings at the speed of PCIe 3.0 or less have half of the threads.
  const bool is_ring = algorithm == Algorithm::kRing;
  int64_t threads = algorithm == Algorithm::kPat ? 640 : 512;
  int64_t bytes_per_thread = 64;
  if (protocol == Protocol::kLl) bytes_per_thread = is_ring ? int64_t{8} * ranks_ : 8;
  if (protocol == Protocol::kLl128) {
    threads = 640;
    bytes_per_thread = 8;
  }
  constexpr double kSlow = 12;
  if (is_ring && protocol == Protocol::kSimple &&
      graphs_.ring.channels * graphs_.ring.in_node <= kSlow) {
    threads = 256;
  }
  return static_cast<int>(
      std::clamp<int64_t>(bytes / (threads * bytes_per_thread), 1, graphs_.channels));
}

double message_latency_us(const Machine& machine, bool one_node) {
  const Constants& constants = constants_of(machine.version);
  constexpr auto kRing = static_cast<size_t>(Algorithm::kRing);
  constexpr auto kLl = static_cast<size_t>(Protocol::kLl);
  const double base = constants.base_latency_us[kRing][kLl];
  if (one_node) return base + constants.node_latency_us[kRing][kLl];
  return base + constants.network_latency_us[kRing][kLl] + machine.extra_network_us;
}

}  // namespace accelerate::simulator::nccl
