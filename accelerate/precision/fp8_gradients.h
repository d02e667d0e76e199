/// Gradients that are rounded to fp8 before they are reduced (MS-AMP's level O1).
///
/// A weight's gradient is rounded to E4M3 with a scale that is equal on all ranks, and then
/// averaged as usual: the sum of the rounded numbers is not rounded again. It is reduced in its own
/// type, because no backend sums fp8. A gradient that is not finite on one rank becomes NaN on all.
///
/// Threads: the thread of the backward pass.
/// Source: Peng et al., "FP8-LM: Training FP8 Large Language Models", 2023.
#pragma once

#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/base/libtorch_fwd.h"

namespace accelerate {

/// Rounds each gradient in place; undefined ones are skipped. Collective over `group`, with one
/// all-reduce for which ranks pass the same number of gradients in the same order; local if `group`
/// is null.
void quantize_gradients(const std::vector<at::Tensor>& gradients, c10d::ProcessGroup* group);

/// quantize_gradients() for those of some parameters' gradients that are of `weights`.
class Fp8GradientRounding {
 public:
  explicit Fp8GradientRounding(std::vector<at::Tensor> weights);

  /// `gradients`: by parameter, of any shape. Collective as quantize_gradients().
  void round(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& gradients,
             c10d::ProcessGroup* group) const;

 private:
  const std::vector<at::Tensor> weights_;  // keeps the addresses in is_weight_ valid
  std::unordered_set<at::TensorImpl*> is_weight_;
};

}  // namespace accelerate
