/// The model of one accelerator: its memory and its speed.
///
/// Units: bytes, bytes per second, FLOP per second (a fused multiply-add counts two), nanoseconds
///        of virtual time. Peaks are the vendor's dense figures, not achieved ones.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace accelerate::simulator {

/// The number formats for which devices have a peak rate of their own.
enum class MathType { kFp64, kFp32, kFp16, kBf16, kFp8, kInt8 };
inline constexpr size_t kNumMathTypes = 6;

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

  double flops(MathType type) const { return flops_per_second[static_cast<size_t>(type)]; }

  bool operator==(const DeviceModel&) const = default;
};

}  // namespace accelerate::simulator
