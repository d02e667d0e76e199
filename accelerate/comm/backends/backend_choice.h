/// Parses a user's choice of backends by device: "gloo", or "cpu:gloo,cuda:nccl".
///
/// Local.
#pragma once

#include <string>
#include <vector>

#include <c10/core/DeviceType.h>

namespace accelerate {

struct DeviceBackend {
  c10::DeviceType device;
  std::string backend;

  bool operator==(const DeviceBackend&) const = default;
};

/// The backends that a rank on `device` needs: first the one for the device's tensors, then one for
/// CPU tensors, with which ranks exchange what the library itself needs. A bare name is the
/// device's backend. Without a choice for the CPU, the device's backend is used if it carries CPU
/// tensors
/// ("gloo", "mpi"), else "gloo". Entries for other devices are ignored, so that one choice serves
/// machines with and without them.
/// Errors: c10::ValueError for text that is not such a list, a device named twice, and a list
///         without the rank's device.
std::vector<DeviceBackend> backends_by_device(const std::string& choice, c10::DeviceType device);

}  // namespace accelerate
