/// A simulated cluster as text, and all constants that the simulator derives from the text.
///
///   2x4                          2 nodes of 4 ranks; CPU tensors, no hardware modelled
///   2x4:h100                     ranks on H100s, in their usual node and network
///   2x8:a100-80,nic=200Gbps      with one constant changed
///   tpu-v4:2x2x4                 a torus of 16 chips
///   cluster.json                 a file; see README.md in this folder
///
/// Units: bytes, bytes per second of one direction, nanoseconds.
/// Errors: InvalidArgument; the message shows the text and points at the character.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "simulator/hardware/device_model.h"
#include "simulator/hardware/fabric_model.h"

namespace accelerate::simulator {

struct ClusterSpec {
  int num_nodes = 1;
  int ranks_per_node = 1;
  /// nullopt: CPU tensors and no model of time or memory.
  std::optional<DeviceModel> device;
  NodeFabric node_fabric = NodeFabric::kSwitch;
  /// kSwitch: device to switch. kMesh: device to device. kPcie: device to bridge. kTorus: chip to
  /// neighbour.
  LinkModel node_link;
  NetworkFabric network_fabric = NetworkFabric::kEthernet;
  /// The link of one NIC; a node has `nics_per_node` NICs.
  LinkModel nic;
  int nics_per_node = 1;
  /// kTorus only: chips along each axis; their product is world_size(). An axis of two chips is one
  /// link, not a ring of two.
  std::vector<int> torus;

  int world_size() const { return num_nodes * ranks_per_node; }
  /// Text that parse() reads as the same cluster; reports use it as the cluster's name. JSON on one
  /// line where the short form cannot express the cluster.
  std::string to_string() const;

  /// Reads the file if `text` ends in ".json".
  static absl::StatusOr<ClusterSpec> parse(absl::string_view text);

  bool operator==(const ClusterSpec&) const = default;
};

}  // namespace accelerate::simulator
