/// What the simulator knows of one accelerator: how much it holds and how fast it is.
///
/// Units: bytes, bytes per second, FLOP per second (a fused multiply-add counts two), nanoseconds
///        of virtual time. Peaks are the vendor's dense figures, not achieved ones. A value.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace accelerate::simulator {

/// The number formats for which devices state a peak rate of their own.
enum class MathType { kFp64, kFp32, kFp16, kBf16, kFp8, kInt8 };
inline constexpr size_t kNumMathTypes = 6;

struct DeviceModel {
  /// As in a cluster specification: "h100", "a100-80".
  std::string name;
  /// What decides the DistributedType: "gpu", "npu", "hpu", "xpu", "mlu", "sdaa", "musa", "neuron",
  /// "tpu" or "cpu".
  std::string family;
  int64_t memory_bytes = 0;
  double memory_bytes_per_second = 0;
  /// By MathType. Matrix units where the device has them and LibTorch uses them by default. A
  /// format that the device lacks has the rate of the one that kernels compute it in, never zero.
  std::array<double, kNumMathTypes> flops_per_second = {};
  /// What the host spends to issue one kernel, and a kernel's shortest duration.
  int64_t launch_ns = 0;
  int64_t kernel_ns_min = 0;
  /// To and from the host's memory, one direction.
  double host_bytes_per_second = 0;

  double flops(MathType type) const { return flops_per_second[static_cast<size_t>(type)]; }

  bool operator==(const DeviceModel&) const = default;
};

}  // namespace accelerate::simulator
