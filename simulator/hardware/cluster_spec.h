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

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace accelerate::simulator {

/// The number formats for which devices have a peak rate of their own.
enum class MathType { kFp64, kFp32, kFp16, kBf16, kFp8, kInt8 };
inline constexpr size_t kNumMathTypes = 6;

/// How close kernels come to a device's peaks: see kernel_time.h.
enum class Efficiency {
  kIdeal,     ///< they reach them
  kMeasured,  ///< as measurements tell that were published (kernel_table.h)
};

/// The kernels that a program is taken to run; its numbers stay those of its operators.
enum class KernelSet {
  kEager,              ///< LibTorch's, one operator after the other
  kTransformerEngine,  ///< neighbours fused as training kernels are: see ../device/kernel_chain.h
};

/// The model of one accelerator: its memory and its speed.
struct DeviceModel {
  /// As in a cluster specification: "h100", "a100-80".
  std::string name;
  /// The family decides the DistributedType: "gpu", "npu", "hpu", "xpu", "mlu", "sdaa", "musa",
  /// "neuron", "tpu" or "cpu".
  std::string family;
  int64_t memory_bytes = 0;
  double memory_bytes_per_second = 0;
  /// By MathType. The rates are those of matrix units where the device has them and LibTorch uses
  /// them by default. A format that the device lacks has the rate of the format that kernels
  /// compute it in; no rate is zero.
  std::array<double, kNumMathTypes> flops_per_second = {};
  /// The time that the host spends to issue one kernel, and the shortest duration of a kernel.
  int64_t launch_ns = 0;
  int64_t kernel_ns_min = 0;
  /// The bandwidth to or from the host's memory, one direction.
  double host_bytes_per_second = 0;
  /// kMeasured only if find_kernel_table() knows the name, and then unless a cluster's text says
  /// otherwise, or if `kernel_file` is a table.
  Efficiency efficiency = Efficiency::kIdeal;
  /// Under kMeasured: a file with the table to take in place of the one that is built in.
  std::string kernel_file = {};
  /// NVIDIA's devices only.
  KernelSet kernels = KernelSet::kEager;
  /// Whether a step after the first costs the host one launch, as a captured one that is replayed.
  /// NVIDIA's devices only.
  bool graphs = false;
  /// Settings of the caching allocator, under kMeasured only. Without them the environment's hold
  /// (driver_memory.h), or LibTorch's defaults: neither.
  std::optional<bool> expandable_segments = std::nullopt;
  std::optional<int64_t> max_split_bytes = std::nullopt;

  double flops(MathType type) const { return flops_per_second[static_cast<size_t>(type)]; }

  bool operator==(const DeviceModel&) const = default;
};

/// One direction of a link. A message takes the latency of every link that it crosses.
struct LinkModel {
  double bytes_per_second = 0;
  int64_t latency_ns = 0;

  bool operator==(const LinkModel&) const = default;
};

/// The disk of a node, for reading and writing. Without a rate it takes no time.
struct DiskModel {
  double bytes_per_second = 0;
  /// From the end of a transfer until a reader has the bytes, or a sync knows them durable.
  int64_t latency_ns = 0;

  bool takes_time() const { return bytes_per_second > 0; }

  bool operator==(const DiskModel&) const = default;
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

}  // namespace accelerate::simulator
