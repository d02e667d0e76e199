/// Wrong values: a flipped bit or a NaN in one element of a tensor.
///
/// The element and the bit are those of the fault, or drawn. Neither versions of tensors nor
/// autograd take notice, as with hardware that is wrong without a word.
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "absl/types/span.h"
#include "simulator/device/sim_device.h"
#include "simulator/faults/sites.h"

namespace accelerate::simulator {

/// Strikes one element of all those that the tensors have, of a device or the host; NaN strikes
/// floating-point tensors alone. Returns how many elements changed: 1 or 0.
/// Errors: c10::ValueError for a tensor whose values were not computed (numerics = shapes).
int64_t strike_values(const SiteFault& fault, absl::Span<const at::Tensor> tensors);

/// The faults of values at one operator, from its call to its end.
class OperatorFaults {
 public:
  /// The rank has come to the operator of that name: strikes its arguments, which `sites` may
  /// refuse. Errors: as FaultSites::reach() and strike_values().
  OperatorFaults(FaultSites& sites, const SimDevice& device, const char* name,
                 c10::ArrayRef<c10::IValue> arguments);

  /// The kernel has run.
  void strike_results(c10::ArrayRef<c10::IValue> results);

 private:
  void strike(const SiteFault& fault, c10::ArrayRef<c10::IValue> values, bool are_results);

  FaultSites& sites_;
  std::vector<SiteFault> for_results_;
};

}  // namespace accelerate::simulator
