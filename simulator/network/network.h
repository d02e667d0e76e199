/// How long communication takes on a cluster's links. Pure functions of the specification: no
/// clock, no ranks' state. The closed forms: README.md in this folder.
///
/// Collectives: the time of an algorithm on an uncontended network. Which algorithm runs is chosen
/// as NCCL would choose: the one that this model expects to be fastest, ties going to the one named
/// first. Point-to-point messages share links: see flows.h.
///
/// Units: bytes, nanoseconds of virtual time. Ranks are global, ascending, without repeats.
/// Threads: one at a time, even for const methods; they remember what they found out of a group.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/network/torus.h"

namespace accelerate::simulator {

enum class CollectiveKind {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
};
inline constexpr size_t kNumCollectiveKinds = 9;

enum class CollectiveAlgorithm { kNone, kRing, kTree, kHierarchical, kTorus, kDirect };
inline constexpr size_t kNumCollectiveAlgorithms = 6;

/// "ring", "tree", ...
absl::string_view to_string(CollectiveAlgorithm algorithm);

struct CollectiveTime {
  int64_t ns = 0;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kNone;
};

/// What one switch of the network adds to a message's latency. Rails pass one (their leaf), other
/// fabrics three (leaf, spine, leaf). A round number above what vendors print for InfiniBand.
inline constexpr int64_t kNetworkSwitchNs = 300;

/// Every algorithm takes a fixed time and a time for each byte.
struct CollectiveCost {
  double latency_ns = 0;
  double ns_per_byte = 0;

  double ns(double bytes) const { return latency_ns + bytes * ns_per_byte; }
};

/// What collectives cost one group of ranks, by CollectiveKind and CollectiveAlgorithm; nothing
/// where an algorithm does not apply.
using CollectiveCosts =
    std::array<std::array<std::optional<CollectiveCost>, kNumCollectiveAlgorithms>,
               kNumCollectiveKinds>;

class Network {
 public:
  /// `spec` without a device: all times are zero.
  explicit Network(const ClusterSpec& spec);

  /// `bytes`: the size of the whole result of one rank: the tensor of an all-reduce, reduce or
  /// broadcast; all parts together of an all-gather, reduce-scatter, gather, scatter or all-to-all.
  CollectiveTime collective(CollectiveKind kind, absl::Span<const int> ranks, int64_t bytes) const;

  /// The time that one algorithm would take; -1 where it does not apply to these ranks.
  int64_t collective_ns(CollectiveKind kind, CollectiveAlgorithm algorithm,
                        absl::Span<const int> ranks, int64_t bytes) const;

  /// The links that a message from one rank's device to another's crosses, in order, and the sum of
  /// their latencies and the switches'. A message to the same rank crosses none.
  struct Route {
    std::vector<int> links;
    int64_t latency_ns = 0;
  };
  Route route(int source, int target) const;

  /// Bytes per second of each link that route() has named; it may grow with further routes.
  const std::vector<double>& link_bytes_per_second() const { return link_bytes_per_second_; }

  const ClusterSpec& spec() const { return spec_; }

 private:
  // Lets a span look up a list without copying it.
  struct HashRanks {
    using is_transparent = void;
    size_t operator()(absl::Span<const int> ranks) const;
  };
  struct SameRanks {
    using is_transparent = void;
    bool operator()(absl::Span<const int> a, absl::Span<const int> b) const { return a == b; }
  };

  const CollectiveCosts& costs_of(absl::Span<const int> ranks) const;
  // The link between two devices of a node. A large mesh has more of them than anybody uses, so
  // they are numbered as they come.
  int mesh_link(int source, int target) const;
  int nic_of(int rank) const;
  void append_in_node(int source, int target, Route& route) const;
  void append_between_nodes(int source, int target, Route& route) const;

  ClusterSpec spec_;
  std::optional<internal::Torus> torus_;
  // Where each sort of link begins.
  int first_bridge_ = 0;
  int first_nic_ = 0;
  mutable std::vector<double> link_bytes_per_second_;
  mutable std::unordered_map<int64_t, int> mesh_links_;
  mutable std::unordered_map<std::vector<int>, CollectiveCosts, HashRanks, SameRanks> costs_;
};

}  // namespace accelerate::simulator
