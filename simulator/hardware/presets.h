/// The devices that a cluster specification may name, each with its usual node and network.
/// presets.cc names the source of every constant.
///
/// Threads: pure functions; the results live as long as the process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "simulator/hardware/cluster_spec.h"

namespace accelerate::simulator {

/// By default, eight devices behind a switch, and rails between the nodes.
struct Preset {
  DeviceModel device;
  /// NVIDIA's, as in 90; 0 for devices of other vendors.
  int compute_capability = 0;
  /// Other spellings of the device's name.
  std::vector<std::string> aliases;
  /// Devices in the node that the constants below describe; a cluster may have more or fewer.
  int devices_per_node = 8;
  NodeFabric node_fabric = NodeFabric::kSwitch;
  LinkModel node_link;
  NetworkFabric network_fabric = NetworkFabric::kRails;
  LinkModel nic;
  /// NICs of that node; a rail-optimised network has one NIC per device instead.
  int nics_per_node = 1;
  /// kTorus only: the number of axes that a pod can have.
  int torus_axes = 0;
};

/// All presets, in the order of their documentation. Those of devices with a table of kernels
/// (kernel_table.h) are measured, others ideal.
const std::vector<Preset>& presets();

/// Finds a preset by name or alias, in any case; null if there is none. The device's `name` is the
/// one that presets() lists.
const Preset* find_preset(absl::string_view name);
const DeviceModel* find_device(absl::string_view name);

/// The names of all devices, without aliases.
std::vector<std::string> device_names();

// The common part of the two parsers of cluster specifications (short form and JSON): the usual
// node and network of a device, and the limits.
namespace internal {

/// DeviceModel::launch_ns of most presets.
inline constexpr int64_t kLaunchNs = 5000;
/// Every rank is a thread, so a larger number is taken for a typing error.
inline constexpr int kMaxWorldSize = 16384;
/// LibTorch counts a process's devices of a kind in eight bits.
inline constexpr int kMaxDevicesPerNode = 127;
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

/// "switch", "mesh", "pcie", "torus"; "rails", "fat-tree", "ethernet"; "ideal", "measured";
/// "eager", "transformer_engine"; of MathType "fp64", "fp32", "fp16", "bf16", "fp8", "int8".
std::string name_of(NodeFabric fabric);
std::string name_of(NetworkFabric fabric);
std::string name_of(Efficiency efficiency);
std::string name_of(KernelSet kernels);
/// The names that a user may choose; a torus follows from the device.
template <typename Choice>
const std::vector<std::string>& choice_names();
template <typename Choice>
std::optional<Choice> choice_of(absl::string_view name);

/// Sets the efficiency by its name, or to that of a table in a file. Otherwise tells what was
/// expected.
std::string set_efficiency(absl::string_view name, DeviceModel& device);
/// What set_efficiency reads as the device's.
std::string efficiency_text(const DeviceModel& device);

/// The same for "eager" and "transformer_engine", and for "on" and "off".
std::string set_kernels(absl::string_view name, DeviceModel& device);
std::string set_graphs(absl::string_view name, DeviceModel& device);

/// What was expected in the place of the device's memory; empty if tensors can have some of it.
std::string memory_problem(const DeviceModel& device);

/// Whether a process can have the devices of the cluster's nodes; a network of larger nodes can
/// still be asked for its times. `text` is what the error calls the cluster. Errors:
/// InvalidArgument.
absl::Status check_devices(const ClusterSpec& spec, absl::string_view text);

/// What was expected in the place of the device's setting of that key ("expandable_segments",
/// "max_split_size"); empty if it may have it.
std::string allocator_problem(absl::string_view key, const DeviceModel& device);

/// Sets the version of NCCL by text as "2.28.9". Otherwise tells what was expected.
std::string set_nccl_version(absl::string_view text, ClusterSpec& spec);
std::string nccl_version_text(int version);

/// Parses JSON. `origin` names the text in errors: a path, or empty.
absl::StatusOr<ClusterSpec> parse_cluster_json(absl::string_view text, absl::string_view origin);
std::string cluster_to_json(const ClusterSpec& spec);

}  // namespace internal

}  // namespace accelerate::simulator
