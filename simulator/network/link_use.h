/// The bytes that cross each link while a collective or a message runs: what its algorithm sends,
/// not what its time is made of.
///
/// Counted is the payload, each time that it crosses a link, by the algorithm's own scheme:
/// README.md in this folder has a table. Left out are headers, flags (LL doubles what it sends,
/// LL128 adds a sixteenth), and how pipelines fill. Approximations:
///
/// - Within a node bytes are spread evenly over the group's members there, and those that leave it
///   over their NICs, as rings and trees with several channels do. A chain has one hop less than
///   members: its ends are spread as well.
/// - Of a mesh's links, and of a torus's, those that leave one device count together.
/// - On a torus, what a chip passes on for others counts as the members' own, and hops between
///   members that are not neighbours have their mean length.
/// - An all-to-all sends as many bytes to each of the others.
///
/// Units: bytes. Threads: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/network/network.h"

namespace accelerate::simulator {

/// The bytes over the links at one rank, one direction each.
struct LinkBytes {
  double node_out = 0;  ///< from its device to its node's others; on a torus, to neighbours
  double node_in = 0;
  double bridge = 0;   ///< its part of what crosses its node's host bridge
  double nic_out = 0;  ///< over its part of its node's NICs
  double nic_in = 0;

  LinkBytes& operator+=(const LinkBytes& other);
  LinkBytes operator*(double factor) const;
};

/// By LinkAtRank.
inline constexpr std::array kLinksAtRank = {&LinkBytes::node_out, &LinkBytes::node_in,
                                            &LinkBytes::bridge, &LinkBytes::nic_out,
                                            &LinkBytes::nic_in};
inline constexpr size_t kNumLinksAtRank = kLinksAtRank.size();

/// Bytes per second of the links at one rank, each with its part of what its node has in common.
LinkBytes link_rates(const ClusterSpec& spec);

/// Bytes per second from one device to its node's others, over all of its links.
double node_bytes_per_second(const ClusterSpec& spec);

/// By member, for each byte of the result; see Network::collective. `root`: the member's number,
/// where it matters. Nothing crosses a link for a single member or a barrier.
std::vector<LinkBytes> link_use(const ClusterSpec& spec, CollectiveKind kind,
                                CollectiveAlgorithm algorithm, absl::Span<const int> ranks,
                                int root = 0);

/// By rank, for each byte of a message: sender, receiver, and on rails the rank that passes it on.
std::vector<std::pair<int, LinkBytes>> message_link_use(const ClusterSpec& spec, int source,
                                                        int target);

}  // namespace accelerate::simulator
