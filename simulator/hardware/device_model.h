/// The models of what a cluster consists of: accelerators, links, and the fabrics that links form.
///
/// Units:   bytes, bytes per second of one direction, FLOP per second (a fused multiply-add counts
///          two), nanoseconds of virtual time.
/// Threads: values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "accelerate/base/enum_text.h"

namespace accelerate::simulator {

/// The number formats for which devices have a peak rate of their own.
enum class MathType { kFp64, kFp32, kFp16, kBf16, kFp8, kInt8 };
inline constexpr size_t kNumMathTypes = 6;

/// How close kernels come to a device's peaks: see kernel_time.h.
enum class Efficiency {
  kIdeal,     ///< they reach them
  kMeasured,  ///< as measurements tell that were published (kernel_tables.h)
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

namespace internal {

/// DeviceModel::launch_ns of most presets.
inline constexpr int64_t kLaunchNs = 5000;

}  // namespace internal
}  // namespace accelerate::simulator

namespace accelerate {

ACCELERATE_ENUM_TEXTS(simulator::MathType, "type", "fp64", "fp32", "fp16", "bf16", "fp8", "int8")
ACCELERATE_ENUM_TEXTS(simulator::Efficiency, "efficiency", "ideal", "measured")
ACCELERATE_ENUM_TEXTS(simulator::KernelSet, "kernels", "eager", "transformer_engine")
ACCELERATE_ENUM_TEXTS(simulator::NodeFabric, "fabric of a node", "switch", "mesh", "pcie", "torus")
ACCELERATE_ENUM_TEXTS(simulator::NetworkFabric, "fabric of the network", "rails", "fat-tree",
                      "ethernet")

}  // namespace accelerate
