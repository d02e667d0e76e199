/// The channels that NCCL finds for a group of GPUs, and the speed of each.
///
/// NCCL searches the graph of links for paths. Here nodes are regular, so that counting is enough:
/// GPUs behind switches that never block, and NICs that are all alike. Where logs of NCCL are
/// public the result is theirs (search_test.cc).
///
/// Units: GB/s are 1e9 bytes per second, one direction. Threads: pure functions.
/// Mirrors: github.com/NVIDIA/nccl, src/graph/search.cc (ncclTopoCompute) and connect.cc.
#pragma once

#include <compare>
#include <cstdint>

#include "absl/types/span.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/network/nccl/constants.h"

namespace accelerate::simulator::nccl {

/// What NCCL would find out about a machine.
struct Machine {
  int version = 0;
  Generation generation = Generation::kAmpere;
  /// All NVLinks of a GPU together, and one NIC behind its slot, as NCCL counts them.
  double nvlink = 0;
  double nic = 0;
  /// The vendor of the CPUs, which decides how fast LL is between nodes.
  bool has_amd_cpus = false;
  /// What a message between nodes takes beyond the networks that NCCL's table is about: its
  /// plug-ins may say so.
  double extra_network_us = 0;
};

/// Whether collectives of this cluster are NCCL's: devices of Ampere, Hopper or Blackwell behind
/// NVSwitch.
bool applies_to(const ClusterSpec& spec);
/// `spec` is one that applies_to() accepts; `network_ns` is the latency of a message between nodes
/// by its links.
Machine machine_of(const ClusterSpec& spec, int64_t network_ns = 0);

/// The members of a group in one node, and the NICs that they use.
struct Node {
  int gpus = 0;
  int nics = 0;

  auto operator<=>(const Node&) const = default;
};

/// The shape of a group.
struct Shape {
  int ranks = 0;
  int nodes = 0;
  /// The nodes, without repeats.
  absl::Span<const Node> kinds;
};

/// Channels, and the speed of each in the node and between nodes. No channels: not to be had.
struct Graph {
  int channels = 0;
  double in_node = 0;
  double between_nodes = 0;

  auto operator<=>(const Graph&) const = default;
};

struct Graphs {
  Graph ring;
  Graph tree;
  Graph nvls;
  /// Whether all rings pass the GPUs of a node in the same order.
  bool rings_are_alike = false;
  /// Whether trees are a chain with all of its network traffic at one GPU, which costs them speed.
  bool trees_are_chains = false;
  /// Channels that run, one thread block and so one multiprocessor each: those of rings and trees,
  /// and those of NVLS.
  int channels = 0;
  int nvls_channels = 0;

  auto operator<=>(const Graphs&) const = default;
};

/// `shape` has two ranks or more.
Graphs search(const Machine& machine, const Shape& shape);

}  // namespace accelerate::simulator::nccl
