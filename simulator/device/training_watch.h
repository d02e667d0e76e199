/// Follows a rank's training loop by its operators, for the memory's categories and the step's
/// number: a forward pass runs with gradients enabled, an optimizer writes to parameters with
/// gradients disabled.
///
/// Threads: the rank's.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "simulator/device/op_info.h"
#include "simulator/device/sim_device.h"

namespace accelerate::simulator {

/// Call before each operator, with the rank's own tensors.
void watch_training(SimDevice& device, const OpInfo& info, c10::ArrayRef<c10::IValue> arguments);

/// The same for a tensor that is about to be written.
void watch_write(SimDevice& device, const at::Tensor& tensor);

}  // namespace accelerate::simulator
