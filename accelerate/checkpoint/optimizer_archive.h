/// The state of an optimizer that only its own `save` and `load` understand, as bytes.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace accelerate::internal {

/// A uint8 vector. Errors: c10::ValueError if the optimizer saves nothing.
at::Tensor optimizer_archive(const torch::optim::Optimizer& optimizer);

/// \pre A contiguous uint8 vector on the CPU.
/// Errors: c10::ValueError for bytes that the optimizer cannot load; it is as it was then, as far
///         as its own load brings back what it saves.
void load_optimizer_archive(torch::optim::Optimizer& optimizer, const at::Tensor& archive);

}  // namespace accelerate::internal
