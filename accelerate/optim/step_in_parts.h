/// An optimizer's step that updates parameters part by part, so that only one part's gradients are
/// there in their parameters' dtype at a time.
///
/// Gradients may have another dtype than their parameters, as sums of gradients in bf16 for
/// parameters in float32. They are cast for the step of their part, and stay as they are.
///
/// Threads: the optimizer's.
/// Mirrors: deepspeed, sub_group_size.
#pragma once

#include <cstdint>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace accelerate {

/// Whether the optimizer updates each parameter by what it keeps of that parameter alone, and so in
/// parts as it would at once: LibTorch's but LBFGS, Lion and Lamb. Local.
bool can_step_in_parts(const torch::optim::Optimizer& optimizer);

/// A step of the optimizer; parts have at least `elements` elements, but for the last one. All
/// parameters are one part if it is 0, or if the optimizer cannot step in parts. Local.
/// Errors: those of the optimizer's step, with the gradients as they were.
void step_in_parts(torch::optim::Optimizer& optimizer, int64_t elements);

}  // namespace accelerate
