/// A scope in which new tensors are on a device unless they name another. A model that is built in
/// it has its parameters there from the beginning, and needs no memory on the host:
///
///     const auto net = [&] {
///       const DefaultDeviceScope scope(accelerator.device());
///       return Net(options);
///     }();
///
/// It concerns the operators that make a tensor from no other one (torch::empty, randn, full,
/// arange, eye, ...) and are given no device: parameters and buffers of torch::nn's modules among
/// them. All others work as outside: zeros_like, new_empty and to follow their input, and tensors
/// that a kernel makes for itself stay where the kernel needs them. A generator of another kind of
/// device counts as a device. Random numbers come from the device's own generator. On "meta"
/// tensors have a shape and no values. Scopes nest; the innermost one decides.
///
/// Limits:  torch::tensor of a list and torch::from_blob copy or share the host's memory and stay
///          there, also in the scope; torch::tensor of one number does not.
/// Cost:    each operator takes a fraction of a microsecond more, so training belongs outside.
/// Errors:  those of the device, such as c10::OutOfMemoryError.
/// Local. Threads: as OperatorModeScope.
/// Mirrors: torch.set_default_device and `with torch.device(...)`.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include "accelerate/operators/operator_mode.h"

namespace accelerate {

class DefaultDeviceScope {
 public:
  explicit DefaultDeviceScope(c10::Device device);

 private:
  const OperatorModeScope handler_;
};

namespace internal {

/// The argument that says where a new tensor is to be, if the call leaves that open; else null.
/// `type`: a generator of another kind of device counts as a device.
c10::IValue* open_device(const OperatorCall& call, c10::DeviceType type);

/// The device of this thread's innermost DefaultDeviceScope; the CPU without one.
c10::Device default_device();

}  // namespace internal

}  // namespace accelerate
