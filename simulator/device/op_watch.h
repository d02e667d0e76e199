/// Follows a rank by its operators.
///
/// The training loop, for the memory's categories and the step's number: a forward pass runs with
/// gradients enabled, an optimizer writes to parameters with gradients disabled.
///
/// Time on devices that LibTorch cannot address: beyond 127 ranks, tensors are on the CPU, their
/// memory is charged to the rank's device, and operators take the time that they would take there.
/// An operator handler of the rank's thread sees every operator, in forward and backward passes
/// (see accelerate/operators/operator_mode.h).
///
/// Threads: the rank's.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "accelerate/operators/operator_mode.h"
#include "simulator/device/op_info.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {

/// Call before each operator, with the rank's own tensors.
void watch_training(SimDevice& device, const OpInfo& info, c10::ArrayRef<c10::IValue> arguments);

/// The same for a tensor that is about to be written.
void watch_write(SimDevice& device, const at::Tensor& tensor);

/// Charges this thread's CPU tensors to `device` for a scope; no effect if it is null.
class HostCostScope {
 public:
  explicit HostCostScope(SimDevice* device);

 private:
  const ChargeScope charge_;
  const OperatorModeScope handler_;
};

}  // namespace accelerate::simulator
