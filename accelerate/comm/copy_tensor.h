/// A tensor that one rank has, on all of them, when the others know neither shape nor rank.
///
/// Collective over `group`; a null group stands for one rank alone.
/// Mirrors: accelerate utils/operations.py, gather_tensor_shape, copy_tensor_to_devices.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "accelerate/comm/operations.h"
#include "accelerate/tensors/tensor_information.h"

namespace accelerate {

struct TensorSource {
  int rank = 0;
  TensorInformation information;
};

/// Finds the rank that has the tensor, and its shape and dtype; the other ranks pass an undefined
/// one.
/// Errors: c10::ValueError, on every rank, unless exactly one rank has a tensor.
TensorSource gather_tensor_shape(const ProcessGroupPtr& group, const at::Tensor& tensor = {});

/// That tensor; on the other ranks on `device`.
at::Tensor copy_tensor_to_devices(const ProcessGroupPtr& group, const at::Tensor& tensor = {},
                                  c10::Device device = c10::kCPU);

}  // namespace accelerate
