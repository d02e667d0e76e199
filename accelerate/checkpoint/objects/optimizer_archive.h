/// The state of an optimizer that only its own `save` and `load` understand, as bytes.
///
/// They are an archive of LibTorch's, a zip with pickles and the source of TorchScript classes, and
/// LibTorch executes such classes when it reads them. So an archive is looked through before, and
/// refused unless its classes are nothing but the names and types of their members, as those are
/// that an OutputArchive makes of tensors and values.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace accelerate::internal {

/// A uint8 vector. Errors: c10::ValueError if the optimizer saves nothing, or objects with code.
at::Tensor optimizer_archive(const torch::optim::Optimizer& optimizer);

/// \pre A contiguous uint8 vector on the CPU.
/// Errors: c10::ValueError for bytes that hold code, or that the optimizer cannot load; it is as it
///         was then, as far as its own load brings back what it saves.
void load_optimizer_archive(torch::optim::Optimizer& optimizer, const at::Tensor& archive);

}  // namespace accelerate::internal
