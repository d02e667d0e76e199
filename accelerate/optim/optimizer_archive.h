/// The state of an optimizer that only its own `save` and `load` understand, as a uint8 vector.
///
/// The bytes are an archive of LibTorch's, a zip with pickles and the source of TorchScript
/// classes, which LibTorch executes when it reads them. So an archive is checked first, and refused
/// unless its classes are only names and types of members, as an OutputArchive makes them of
/// tensors and values.
///
/// Errors: c10::ValueError.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace accelerate::internal {

/// Errors: if the optimizer saves nothing, or objects with code.
at::Tensor optimizer_archive(const torch::optim::Optimizer& optimizer);

/// \pre A contiguous uint8 vector on the CPU.
/// Errors: for bytes that hold code, or that the optimizer cannot load; it is as it was then, as
/// far
///         as its own load brings back what it saves.
void load_optimizer_archive(torch::optim::Optimizer& optimizer, const at::Tensor& archive);

}  // namespace accelerate::internal
