/// Which device a rank of a real job computes on, and which backend its groups use by default.
///
/// Units:   indices of devices on this machine.
/// Threads: pure functions, but for present_devices(), which asks LibTorch.
/// Mirrors: PartialState's choice of device and backend, PartialState.default_device.
#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "absl/status/statusor.h"
#include "accelerate/platform/environment.h"
#include "accelerate/platform/topology.h"

namespace accelerate {

/// Accelerators of one kind.
struct DeviceKind {
  /// A value of Runtime::device_family(), or "mps".
  std::string family;
  c10::DeviceType type;
  int count = 0;
};

/// The accelerators that this build of LibTorch, with the vendors' plug-ins linked in, finds on
/// this machine, best first: tpu, mps, mlu, sdaa, musa, npu, hpu, gpu, xpu, neuron, and a plug-in
/// on PrivateUse1 of any other name. They are found through c10's device guards alone. Local; it
/// makes no context on a device.
std::vector<DeviceKind> present_devices();

/// ACCELERATE_TORCH_DEVICE, as in "cuda:1" or "npu", overrides all; then ACCELERATE_USE_CPU; then
/// the best of the present kinds, and the CPU where there is none. Where no index is given it is
/// that of the rank on its node, modulo the number of devices. "mps" is for a rank alone.
/// Errors: InvalidArgument naming the variable, for text that is not a device and for a device that
///         is not present.
absl::StatusOr<c10::Device> choose_device(const Environment& environment, const Topology& topology,
                                          const std::vector<DeviceKind>& present);

/// The backend that devices of a family want: "nccl" for gpu, "hccl" for npu and hpu, "cncl" for
/// mlu, "tccl" for sdaa, "mccl" for musa, "xccl" for xpu, "neuron", "xla" for tpu, else "gloo".
std::string default_backend(const std::string& family);

/// `requested`, or the default of the family. Local.
/// Errors: c10::ValueError when nothing was requested and the default is not among `registered`; it
///         names what is, and how to train on CPUs instead.
std::string choose_backend(const std::string& requested, const std::string& family,
                           const std::vector<std::string>& registered);

}  // namespace accelerate
