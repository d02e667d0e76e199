/// Time on devices that LibTorch cannot address: beyond 127 ranks, tensors are on the CPU, their
/// memory is charged to the rank's device, and operators take the time that they would take there.
///
/// An operator handler of the rank's thread sees every operator, in forward and backward passes
/// (see accelerate/operators/operator_mode.h).
///
/// Threads: the rank's.
#pragma once

#include "accelerate/operators/operator_mode.h"
#include "simulator/device/host_memory.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {

/// Charges this thread's CPU tensors to `device` for a scope; no effect if it is null.
class HostCostScope {
 public:
  explicit HostCostScope(SimDevice* device);

 private:
  const ChargeScope charge_;
  const OperatorModeScope handler_;
};

}  // namespace accelerate::simulator
