/// The links inside a node and between nodes, as a few constants.
///
/// Units: bytes per second of one direction, nanoseconds of virtual time. Values.
#pragma once

#include <cstdint>

namespace accelerate::simulator {

/// One direction of a link. A message takes the latency of every link that it crosses.
struct LinkModel {
  double bytes_per_second = 0;
  int64_t latency_ns = 0;

  bool operator==(const LinkModel&) const = default;
};

/// The connection between the devices of one node.
enum class NodeFabric {
  kSwitch,  ///< each device has one link into a switch that never blocks (NVSwitch)
  kMesh,    ///< a separate link between any two devices (NVLink without switch, xGMI, HCCS)
  kPcie,    ///< all traffic goes through the host bridge
  kTorus,   ///< the chips of a pod form a torus, across hosts (ICI)
};

/// The connection between nodes.
enum class NetworkFabric {
  kRails,     ///< rail-optimised fat tree: a NIC per device; equal local ranks share a rail
  kFatTree,   ///< full bisection; the devices of a node share its NICs
  kEthernet,  ///< full bisection; one NIC per node
};

}  // namespace accelerate::simulator
