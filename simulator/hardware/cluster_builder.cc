#include "simulator/hardware/cluster_builder.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace accelerate::simulator::internal {
namespace {

template <typename Fabric>
std::optional<Fabric> find_fabric(const std::vector<std::string>& names, absl::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Fabric>(found - names.begin());
}

// The number of links that a device has in the fabric of its node.
double links_per_device(NodeFabric fabric, int devices_per_node) {
  return fabric == NodeFabric::kMesh ? std::max(1, devices_per_node - 1) : 1;
}

LinkModel node_link_of(const Preset& preset, NodeFabric fabric) {
  LinkModel link = preset.node_link;
  if (fabric == preset.node_fabric) return link;
  if (fabric == NodeFabric::kPcie) {
    link.bytes_per_second = preset.device.host_bytes_per_second;
    return link;
  }
  // The total bandwidth of a device stays the same, over one link or over one link to each other
  // device.
  link.bytes_per_second = link.bytes_per_second *
                          links_per_device(preset.node_fabric, preset.devices_per_node) /
                          links_per_device(fabric, preset.devices_per_node);
  return link;
}

int nics_per_node_of(const Preset& preset, NetworkFabric fabric, int ranks_per_node) {
  switch (fabric) {
    case NetworkFabric::kRails: return ranks_per_node;
    case NetworkFabric::kFatTree: return preset.nics_per_node;
    case NetworkFabric::kEthernet: return 1;
  }
  return 1;
}

}  // namespace

Shape shape_of_torus(std::vector<int> torus) {
  const int chips = std::accumulate(torus.begin(), torus.end(), 1, std::multiplies<>());
  int per_host = kChipsPerHost;
  while (chips % per_host != 0) --per_host;
  return {.num_nodes = chips / per_host, .ranks_per_node = per_host, .torus = std::move(torus)};
}

ClusterSpec usual_cluster(const Preset& preset, const Shape& shape,
                          std::optional<NodeFabric> node_fabric,
                          std::optional<NetworkFabric> network_fabric) {
  ClusterSpec spec{.num_nodes = shape.num_nodes,
                   .ranks_per_node = shape.ranks_per_node,
                   .device = preset.device};
  spec.node_fabric = node_fabric.value_or(preset.node_fabric);
  spec.node_link = node_link_of(preset, spec.node_fabric);
  if (spec.node_fabric == NodeFabric::kTorus) {
    spec.torus = shape.torus;
    // Hosts along the first axis, their chips along the second.
    if (spec.torus.empty()) spec.torus = {shape.num_nodes, shape.ranks_per_node};
    return spec;
  }
  spec.network_fabric = network_fabric.value_or(preset.network_fabric);
  spec.nic = preset.nic;
  spec.nics_per_node = nics_per_node_of(preset, spec.network_fabric, spec.ranks_per_node);
  return spec;
}

const std::vector<std::string>& node_fabric_names() {
  static const auto* names = new std::vector<std::string>{"switch", "mesh", "pcie"};
  return *names;
}

const std::vector<std::string>& network_fabric_names() {
  static const auto* names = new std::vector<std::string>{"rails", "fat-tree", "ethernet"};
  return *names;
}

std::string name_of(NodeFabric fabric) {
  if (fabric == NodeFabric::kTorus) return "torus";
  return node_fabric_names()[static_cast<size_t>(fabric)];
}

std::string name_of(NetworkFabric fabric) {
  return network_fabric_names()[static_cast<size_t>(fabric)];
}

std::optional<NodeFabric> node_fabric_of(absl::string_view name) {
  return find_fabric<NodeFabric>(node_fabric_names(), name);
}

std::optional<NetworkFabric> network_fabric_of(absl::string_view name) {
  return find_fabric<NetworkFabric>(network_fabric_names(), name);
}

void scale_flops(DeviceModel& device, double bf16) {
  const double ratio = bf16 / device.flops(MathType::kBf16);
  for (double& flops : device.flops_per_second) flops *= ratio;
  device.flops_per_second[static_cast<size_t>(MathType::kBf16)] = bf16;
}

}  // namespace accelerate::simulator::internal
