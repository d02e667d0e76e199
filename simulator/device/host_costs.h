/// Time on devices that LibTorch cannot address: beyond 127 ranks, tensors are on the CPU, their
/// memory is charged to the rank's device, and each operator costs what it would there.
///
/// A dispatch-key mode of the rank's thread sees every operator, in forward and backward passes.
///
/// Threads: the rank's.
#pragma once

#include <optional>

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "simulator/device/host_memory.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {

/// For the rest of the process. Idempotent.
void install_host_costs();

/// Meanwhile this thread's CPU tensors are `device`'s; no effect if it is null.
class HostCostScope {
 public:
  explicit HostCostScope(SimDevice* device);

 private:
  const ChargeScope charge_;
  std::optional<c10::impl::IncludeDispatchKeyGuard> watch_;
};

}  // namespace accelerate::simulator
