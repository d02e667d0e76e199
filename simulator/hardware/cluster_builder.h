/// What the two ways of writing a cluster (the short form and JSON) have in common: the node and
/// the network that go with a device, and the limits. For cluster_spec.cc and cluster_json.cc only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "simulator/hardware/cluster_spec.h"
#include "simulator/hardware/presets.h"

namespace accelerate::simulator::internal {

/// A rank is a thread: more than this is a typing error.
inline constexpr int kMaxWorldSize = 4096;
/// Chips of a pod that share a host, where their number allows.
inline constexpr int kChipsPerHost = 4;

struct Shape {
  int num_nodes = 1;
  int ranks_per_node = 1;
  /// Empty unless chips were given by axis.
  std::vector<int> torus;
};

/// The hosts of a pod.
Shape shape_of_torus(std::vector<int> torus);

/// As the preset says, or with another fabric and what that takes: PCIe replaces the node's links
/// by the host's; a mesh and a switch share the same bandwidth of a device; Ethernet has one NIC.
ClusterSpec usual_cluster(const Preset& preset, const Shape& shape,
                          std::optional<NodeFabric> node_fabric = {},
                          std::optional<NetworkFabric> network_fabric = {});

/// "switch", "mesh", "pcie", "torus"; "rails", "fat-tree", "ethernet".
std::string name_of(NodeFabric fabric);
std::string name_of(NetworkFabric fabric);
/// Those that a user may choose; a torus follows from the device.
const std::vector<std::string>& node_fabric_names();
const std::vector<std::string>& network_fabric_names();
std::optional<NodeFabric> node_fabric_of(absl::string_view name);
std::optional<NetworkFabric> network_fabric_of(absl::string_view name);

/// Sets the peak in bfloat16 and scales the others by the same ratio.
void scale_flops(DeviceModel& device, double bf16);

/// JSON, as a file's contents or on one line. `origin` names it in errors: a path, or the text.
absl::StatusOr<ClusterSpec> parse_cluster_json(absl::string_view text, absl::string_view origin);
std::string cluster_to_json(const ClusterSpec& spec);

}  // namespace accelerate::simulator::internal
