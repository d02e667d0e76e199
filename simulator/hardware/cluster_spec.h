/// A simulated cluster as text, and all constants that the simulator derives from the text.
///
///   2x4                          2 nodes of 4 ranks; CPU tensors, no hardware modelled
///   2x4:h100                     ranks on H100s, in their usual node and network
///   2x8:a100-80,nic=200Gbps      with one constant changed
///   1x1:h100,devices=4           one rank with four devices
///   tpu-v4:2x2x4                 a torus of 16 chips
///   cluster.json                 a file; see README.md in this folder
///
/// Units: bytes, bytes per second of one direction, FLOP per second (a fused multiply-add counts
///        two), nanoseconds of virtual time. Peaks are the vendor's dense figures, not achieved
///        ones.
/// Errors: InvalidArgument; the message shows the text and points at the character.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "accelerate/base/enum_text.h"
#include "simulator/hardware/device_model.h"

namespace accelerate::simulator {

struct Preset;

/// The disk of a node, for reading and writing. Without a rate it takes no time.
struct DiskModel {
  double bytes_per_second = 0;
  /// From the end of a transfer until a reader has the bytes, or a sync knows them durable.
  int64_t latency_ns = 0;

  bool takes_time() const { return bytes_per_second > 0; }

  bool operator==(const DiskModel&) const = default;
};

/// NCCL's versions as ncclGetVersion() tells them: 22809 is 2.28.9, which LibTorch 2.11 for CUDA 13
/// brings.
inline constexpr int kDefaultNcclVersion = 22809;

struct ClusterSpec {
  int num_nodes = 1;
  int ranks_per_node = 1;
  /// nullopt: CPU tensors and no model of time or memory.
  std::optional<DeviceModel> device;
  /// Devices that each rank has to itself. Its collectives and messages leave over one link and
  /// NIC, whichever of them holds the tensor. 1 in a torus, whose chips are the ranks.
  int devices_per_rank = 1;
  NodeFabric node_fabric = NodeFabric::kSwitch;
  /// kSwitch: device to switch. kMesh: device to device. kPcie: device to bridge. kTorus: chip to
  /// neighbour.
  LinkModel node_link;
  NetworkFabric network_fabric = NetworkFabric::kEthernet;
  /// The link of one NIC; a node has `nics_per_node` NICs.
  LinkModel nic;
  int nics_per_node = 1;
  /// The version of NCCL whose times collectives take where ../network/README.md says so. The
  /// default where devices are not NVIDIA's.
  int nccl_version = kDefaultNcclVersion;
  /// Takes no time where no device is named.
  DiskModel disk;
  /// kTorus only: chips along each axis; their product is world_size(). An axis of two chips is one
  /// link, not a ring of two.
  std::vector<int> torus;

  int world_size() const { return num_nodes * ranks_per_node; }
  int devices_per_node() const { return ranks_per_node * devices_per_rank; }
  /// Text that parse() reads as the same cluster; reports use it as the cluster's name. JSON on one
  /// line where the short form cannot express the cluster.
  std::string to_string() const;

  /// Reads the file if `text` ends in ".json".
  static absl::StatusOr<ClusterSpec> parse(absl::string_view text);

  bool operator==(const ClusterSpec&) const = default;
};

// The common part of the two parsers of cluster specifications (short form and JSON): the usual
// node and network of a device, and the limits.
namespace internal {

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

/// The fabrics that a specification may name; a torus follows from the device.
template <typename Fabric>
std::vector<std::string> fabric_names() {
  std::vector<std::string> names = accelerate::texts<Fabric>();
  std::erase(names, accelerate::to_string(NodeFabric::kTorus));
  return names;
}

/// Divides the chips of a pod among hosts.
Shape shape_of_torus(std::vector<int> torus);

/// The cluster of a preset, with other fabrics if given. Constants follow from the fabrics: PCIe
/// replaces the node's links by the host's; a mesh and a switch divide the same bandwidth of a
/// device; Ethernet has one NIC per node.
ClusterSpec usual_cluster(const Preset& preset, const Shape& shape,
                          std::optional<NodeFabric> node_fabric = {},
                          std::optional<NetworkFabric> network_fabric = {});

/// Whether a process can have the devices of the cluster's nodes; a network of larger nodes can
/// still be asked for its times. `text` is what the error calls the cluster. Errors:
/// InvalidArgument.
absl::Status check_devices(const ClusterSpec& spec, absl::string_view text);

/// Sets the version of NCCL by text as "2.28.9". Otherwise tells what was expected.
std::string set_nccl_version(absl::string_view text, ClusterSpec& spec);
std::string nccl_version_text(int version);

/// Parses JSON. `origin` names the text in errors: a path, or empty.
absl::StatusOr<ClusterSpec> parse_cluster_json(absl::string_view text, absl::string_view origin);
std::string cluster_to_json(const ClusterSpec& spec);

}  // namespace internal
}  // namespace accelerate::simulator
