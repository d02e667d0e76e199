/// The common part of the two parsers of cluster specifications (short form and JSON): the usual
/// node and network of a device, and the limits. For cluster_spec.cc and cluster_json.cc only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/hardware/presets.h"

namespace accelerate::simulator::internal {

/// Every rank is a thread, so a larger number is taken for a typing error.
inline constexpr int kMaxWorldSize = 4096;
/// Chips of a pod that share a host, if the number of chips is divisible by it.
inline constexpr int kChipsPerHost = 4;

struct Shape {
  int num_nodes = 1;
  int ranks_per_node = 1;
  /// Chips along each axis; empty if the specification does not name axes.
  std::vector<int> torus;
};

/// Divides the chips of a pod among hosts.
Shape shape_of_torus(std::vector<int> torus);

/// The cluster of a preset, with other fabrics if given. Constants follow from the fabrics: PCIe
/// replaces the node's links by the host's; a mesh and a switch divide the same bandwidth of a
/// device; Ethernet has one NIC per node.
ClusterSpec usual_cluster(const Preset& preset, const Shape& shape,
                          std::optional<NodeFabric> node_fabric = {},
                          std::optional<NetworkFabric> network_fabric = {});

/// "switch", "mesh", "pcie", "torus"; "rails", "fat-tree", "ethernet".
std::string name_of(NodeFabric fabric);
std::string name_of(NetworkFabric fabric);
/// The names that a user may choose; a torus follows from the device.
const std::vector<std::string>& node_fabric_names();
const std::vector<std::string>& network_fabric_names();
std::optional<NodeFabric> node_fabric_of(absl::string_view name);
std::optional<NetworkFabric> network_fabric_of(absl::string_view name);

/// Sets the peak in bfloat16 and scales the others by the same ratio.
void scale_flops(DeviceModel& device, double bf16);

/// Parses JSON. `origin` names the text in errors: a path, or empty.
absl::StatusOr<ClusterSpec> parse_cluster_json(absl::string_view text, absl::string_view origin);
std::string cluster_to_json(const ClusterSpec& spec);

}  // namespace accelerate::simulator::internal
