/// Follows the training loop of this thread's rank by its operators, for the memory's categories,
/// the step's number, and the recorder's steps and phases: a forward pass runs with gradients
/// enabled, an optimizer writes to parameters with gradients disabled. Threads that belong to no
/// rank are not followed.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "simulator/device/op_info.h"

namespace accelerate::simulator {

/// Call before each operator, but behind one that only gives values to the host: a loss that is
/// read behind the optimizer's step ends that step, and errors about it name it.
void watch_training(const OpInfo& info, c10::ArrayRef<c10::IValue> arguments);

/// The same for a tensor that is about to be written while gradients are disabled.
void watch_write(const at::Tensor& tensor);

/// An optimizer of this thread's rank has updated parameters on the host.
void watch_host_update();

/// The backward pass of this thread's rank begins, or has ended.
void watch_backward(bool begins);

}  // namespace accelerate::simulator
