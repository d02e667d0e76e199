/// The links inside a node and between nodes, as a few constants.
///
/// Units: bytes per second of one direction, nanoseconds of virtual time. Values.
#pragma once

#include <cstdint>

namespace accelerate::simulator {

/// One direction of a link. A message pays the latency of every link that it crosses.
struct LinkModel {
  double bytes_per_second = 0;
  int64_t latency_ns = 0;

  bool operator==(const LinkModel&) const = default;
};

/// How the devices of one node reach each other.
enum class NodeFabric {
  kSwitch,  ///< each device has one link into a switch that never blocks (NVSwitch)
  kMesh,    ///< a link of its own between any two devices (NVLink without switch, xGMI, HCCS)
  kPcie,    ///< all through the host bridge
  kTorus,   ///< no nodes: the chips of a pod form a torus (ICI)
};

/// How nodes reach each other.
enum class NetworkFabric {
  kRails,     ///< rail-optimised fat tree: a NIC per device; equal local ranks share a rail
  kFatTree,   ///< full bisection, the node's NICs shared by its devices
  kEthernet,  ///< one NIC a node, full bisection
};

}  // namespace accelerate::simulator
