/// An optimizer's step that updates parameters part by part, so that only one part's gradients are
/// there in their parameters' dtype at a time.
///
/// Gradients may have another dtype than their parameters, as sums of gradients in bf16 for
/// parameters in float32. They are cast for the step of their part, and stay as they are.
///
/// Updates of parameters on the host are announced as HostWork.
///
/// Threads: the optimizer's.
/// Mirrors: deepspeed, sub_group_size.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/base/libtorch_fwd.h"

namespace accelerate {

/// What surrounds the parts of a step, as for states that are in memory for their part only.
class AroundParts {
 public:
  virtual ~AroundParts() = default;

  /// What of a part's memory a parameter needs, and how much there is; 0: no limit.
  virtual int64_t bytes_of(const at::Tensor& parameter) = 0;
  virtual int64_t max_bytes() = 0;

  /// The step begins. `parts`: the parameters of each.
  virtual void begin(const std::vector<std::vector<at::Tensor>>& parts) = 0;
  /// Before the optimizer's step for a part. If it throws, the step ends.
  virtual void before(size_t part) = 0;
  /// After it; `failed`: the step has thrown. Errors in it are not the caller's then.
  virtual void after(size_t part, bool failed) = 0;
};

/// Whether the optimizer updates each parameter by what it keeps of that parameter alone, and so in
/// parts as it would at once: LibTorch's but LBFGS, Lion and Lamb. Local.
bool can_step_in_parts(const torch::optim::Optimizer& optimizer);

/// A step of the optimizer; parts have at least `elements` elements, but for the last one. All
/// parameters are one part if it is 0, or if the optimizer cannot step in parts. With `around`
/// parts also end where the next parameter would exceed their memory. Local. Errors: those of the
/// optimizer's step and of `around`, with the gradients as they were.
void step_in_parts(torch::optim::Optimizer& optimizer, int64_t elements,
                   AroundParts* around = nullptr);

}  // namespace accelerate
