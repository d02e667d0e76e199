/// Time on devices that LibTorch cannot address: beyond 127 ranks, tensors are on the CPU, their
/// memory is charged to the rank's device, and each operator costs what it would there.
///
/// A dispatch-key mode of the rank's thread sees every operator, in forward and backward passes.
///
/// Threads: the rank's.
#pragma once

#include "accelerate/operators/operator_mode.h"
#include "simulator/device/host_memory.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {

/// Meanwhile this thread's CPU tensors are `device`'s; no effect if it is null.
class HostCostScope {
 public:
  explicit HostCostScope(SimDevice* device);

 private:
  const ChargeScope charge_;
  const OperatorModeScope handler_;
};

}  // namespace accelerate::simulator
