/// Which backend carries the tensors of which device, as a user says it: "gloo", or
/// "cpu:gloo,cuda:nccl".
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

/// What a rank that computes on `device` needs of `choice`: one backend for the device's tensors,
/// which comes first, and one for the CPU's, on which ranks say to each other what is no tensor of
/// the user's. A bare name is the device's backend. Where the choice has none for the CPU it is the
/// same if that carries CPU tensors ("gloo", "mpi"), else "gloo". What it says of devices that the
/// rank does not compute on is passed over, so that one choice serves machines with and without
/// them.
/// Errors: c10::ValueError for text that is no such list, a device named twice, and a list without
///         the rank's device.
std::vector<DeviceBackend> backends_by_device(const std::string& choice, c10::DeviceType device);

}  // namespace accelerate
