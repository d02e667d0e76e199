/// The duration of communication on a cluster's links. The results depend on the specification
/// only, not on a clock or the state of ranks. README.md in this folder has the closed forms.
///
/// Collectives take the time of an algorithm on an uncontended network; SharedLinks has the times
/// of collectives that share links with other traffic. The algorithm is chosen as in NCCL: the
/// fastest one by this model; ties go to the algorithm named first. Under
/// Efficiency::kMeasured, GPUs for which nccl::applies_to() holds take the times of NCCL's own
/// model; some other vendors' libraries have closed forms of their own. Point-to-point messages
/// share links: see flows.h.
///
/// Units: bytes, nanoseconds of virtual time. Ranks are global, ascending, without repeats.
/// Threads: one at a time, even for const methods, because they cache the costs of a group.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "accelerate/base/enum_text.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/network/nccl/model.h"
#include "simulator/network/nccl/search.h"
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

enum class CollectiveAlgorithm {
  kNone,
  kRing,
  kTree,
  kHierarchical,
  kTorus,
  kDirect,
  // RCCL's, besides the ring and the tree, which are those with Simple there.
  kRingLl,
  kTreeLl,
  // HCCL's and HCL's: a full mesh in each node, and what comes between nodes.
  kMesh,
  kMeshRing,
  kMeshNhr,
  kMeshRhd,
  kMeshPairs,
  kPipeline,
  // NCCL's alone.
  kNvls,
  kNvlsTree,
  kPat,
};

struct CollectiveTime {
  int64_t ns = 0;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kNone;
  /// By NCCL's model alone: the protocol, and the channels, each of which takes a multiprocessor.
  std::optional<nccl::Protocol> protocol = {};
  int channels = 0;

  /// "ring"; "ring LL128". Lives as long as the process.
  absl::string_view name() const;
};

/// The bytes that cross every member's link for each byte of the result by a ring, as nccl-tests
/// counts them: a time's bytes times this is the bandwidth of the bus.
double bus_factor(CollectiveKind kind, int ranks);

/// The latency of one switch of the network. A message passes one switch on rails (their leaf),
/// three on other fabrics (leaf, spine, leaf). A round number above the vendors' figures for
/// InfiniBand.
inline constexpr int64_t kNetworkSwitchNs = 300;

/// The narrowest link and the latency of a message that is alone between two devices of a node.
/// `spec` has a device.
LinkModel link_in_node(const ClusterSpec& spec);

/// The library whose algorithms have closed forms of their own, by the device and the fabric of a
/// node; `rails`, fat trees and Ethernet do not matter.
enum class CollectiveLibrary {
  kAny,   ///< rings, trees and hierarchies, as in libraries like NCCL; on a torus, tori
  kRccl,  ///< AMD MI300X in its mesh
  kHccl,  ///< Huawei's NPUs in their mesh
  kHcl,   ///< Intel's Gaudi in its mesh
};
CollectiveLibrary collective_library(const ClusterSpec& spec);

/// Every closed form is a fixed time and a time for each byte.
struct CollectiveCost {
  double latency_ns = 0;
  double ns_per_byte = 0;

  double ns(double bytes) const { return latency_ns + bytes * ns_per_byte; }
  auto operator<=>(const CollectiveCost&) const = default;
};

struct ClosedForm {
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kNone;
  CollectiveCost cost;

  auto operator<=>(const ClosedForm&) const = default;
};

/// By CollectiveKind: the algorithms that apply, in the order of the enumeration.
using ClosedForms = std::array<std::vector<ClosedForm>, kNumCollectiveKinds>;

/// The costs of collectives of one group of ranks.
struct CollectiveCosts {
  ClosedForms forms;
  /// Has all kinds but those of direct messages, which NCCL does not model.
  std::optional<nccl::Tuning> nccl;

  /// The order has no meaning; equal costs give equal times.
  auto operator<=>(const CollectiveCosts&) const = default;
};

/// What else is on the network while a group communicates.
enum class Beside : uint8_t {
  kNothing,
  /// The other groups of the same axis of a mesh, which divides all ranks among groups: where ranks
  /// do the same, all communicate at once, and the ranks of a node that share a NIC divide it.
  kItsAxis,
};

/// The links at one rank; see link_use.h.
enum LinkAtRank : size_t { kNodeOut, kNodeIn, kBridge, kNicOut, kNicIn };

class Network {
 public:
  /// If `spec` has no device, all times are zero.
  explicit Network(const ClusterSpec& spec);

  /// `bytes`: the size of the whole result of one rank: the tensor of an all-reduce, reduce or
  /// broadcast; all parts together of an all-gather, reduce-scatter, gather, scatter or all-to-all.
  /// `reduction` matters to NCCL's model alone.
  CollectiveTime collective(CollectiveKind kind, absl::Span<const int> ranks, int64_t bytes,
                            nccl::Reduction reduction = nccl::Reduction::kInSwitches,
                            Beside beside = Beside::kNothing) const;

  /// The time that one algorithm would take; -1 where it does not apply to these ranks.
  int64_t collective_ns(CollectiveKind kind, CollectiveAlgorithm algorithm,
                        absl::Span<const int> ranks, int64_t bytes) const;

  /// The costs of all collectives of two or more ranks. The specification has a device. The result
  /// lives as long as the network.
  const CollectiveCosts& costs_of(absl::Span<const int> ranks,
                                  Beside beside = Beside::kNothing) const;

  /// The links that a message from one rank's device to another's crosses, in order, and the sum of
  /// their latencies and the switches'. A message to the same rank crosses none.
  struct Route {
    std::vector<int> links;
    int64_t latency_ns = 0;
  };
  Route route(int source, int target) const;

  /// Whose a link of route() is: a part of that link of each of the ranks.
  struct LinkOwners {
    size_t link = 0;  ///< a LinkAtRank
    std::vector<int> ranks;
    int nic = -1;  ///< of the cluster, where it is a NIC's
  };
  LinkOwners owners_of(int link) const;

  /// Bytes per second of each link that route() has named; it may grow with further routes.
  const std::vector<double>& link_bytes_per_second() const { return link_bytes_per_second_; }

  const ClusterSpec& spec() const { return spec_; }
  /// The specification with links as fast as the library of its collectives counts them.
  const ClusterSpec& links() const { return links_; }

 private:
  // Allows a lookup by span.
  struct HashRanks {
    using is_transparent = void;
    size_t operator()(absl::Span<const int> ranks) const;
  };
  struct SameRanks {
    using is_transparent = void;
    bool operator()(absl::Span<const int> a, absl::Span<const int> b) const { return a == b; }
  };

  // The link between two devices of a node. Links get their numbers at first use, because a large
  // mesh has many links and few are used.
  int mesh_link(int source, int target) const;
  int nic_of(int rank) const;
  void append_in_node(int source, int target, Route& route) const;
  void append_between_nodes(int source, int target, Route& route) const;

  ClusterSpec spec_;
  ClusterSpec links_;
  CollectiveLibrary library_ = CollectiveLibrary::kAny;
  // Where collectives are NCCL's.
  std::optional<nccl::Machine> nccl_;
  std::optional<internal::Torus> torus_;
  // The numbers of the first bridge and of the first NIC.
  int first_bridge_ = 0;
  int first_nic_ = 0;
  mutable std::vector<double> link_bytes_per_second_;
  mutable std::unordered_map<int64_t, int> mesh_links_;
  mutable std::vector<int> mesh_sources_;  // by the link's place behind the NICs
  // By Beside.
  mutable std::array<std::unordered_map<std::vector<int>, CollectiveCosts, HashRanks, SameRanks>, 2>
      costs_;
};

// The closed forms of README.md for one group of ranks: pure functions, for the implementation.
namespace internal {

/// `cluster` has a device, and links as fast as it says of itself; `torus` is the cluster's
/// torus, or null; `ranks` are two or more.
ClosedForms closed_forms(const ClusterSpec& cluster, const Torus* torus,
                         absl::Span<const int> ranks);

/// NCCL's model, and closed forms at the speeds that NCCL counts for what it does not model:
/// nccl::applies_to(spec) holds.
CollectiveCosts nccl_costs(const ClusterSpec& spec, absl::Span<const int> ranks);

/// What NCCL finds out about a cluster; nccl::applies_to(spec) holds.
nccl::Machine nccl_machine(const ClusterSpec& spec);

/// `spec` with its links as fast as NCCL counts them.
ClusterSpec with_links_of(const nccl::Machine& machine, ClusterSpec spec);

/// `spec` with its links as fast as collective_library() counts them.
ClusterSpec with_links_of_library(ClusterSpec spec);

/// What a message between two GPUs takes besides its bytes with RCCL, which has no model for it; an
/// estimate: a kernel's start and one step of a ring with LL.
double rccl_message_ns(const ClusterSpec& spec, bool one_node);

/// NCCL's name of a collective; nullopt where it has no model.
std::optional<nccl::Collective> nccl_collective(CollectiveKind kind);

/// The NICs of a node that messages of a local rank use, [first, last). The NICs are divided evenly
/// among the ranks, or the ranks among the NICs if there are fewer ranks.
std::pair<int, int> nics_of_local_rank(const ClusterSpec& spec, int local_rank);

/// The part of the NICs' bandwidth that those ranks have if all ranks of their nodes use the NICs.
double share_of_nics(const ClusterSpec& spec, absl::Span<const int> ranks);

/// The latency of a message between two nodes: both NICs, the switches between them, and the
/// devices' links to their host bridges if the nodes have bridges.
int64_t latency_between_nodes_ns(const ClusterSpec& spec);
/// The latency of a message between two devices of a node.
int64_t latency_in_node_ns(const ClusterSpec& spec);

/// The bandwidth of a node's host bridge: half of the sum of its ports, as in servers with two
/// sockets.
double bridge_bytes_per_second(const ClusterSpec& spec);

}  // namespace internal
}  // namespace accelerate::simulator

namespace accelerate {

ACCELERATE_ENUM_TEXTS(simulator::CollectiveKind, "collective", "all_reduce", "reduce", "broadcast",
                      "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "barrier")
ACCELERATE_ENUM_TEXTS(simulator::CollectiveAlgorithm, "algorithm", "none", "ring", "tree",
                      "hierarchical", "torus", "direct", "ring LL", "tree LL", "mesh", "mesh, ring",
                      "mesh, NHR", "mesh, RHD", "mesh, pairs", "pipeline", "nvls", "nvls tree",
                      "pat")

}  // namespace accelerate
