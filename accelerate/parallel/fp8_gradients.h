/// Gradients in fp8 on their way to the other ranks (MS-AMP's level O1).
///
/// A weight's gradient is rounded to E4M3 with a scale that all ranks agree on, and then averaged
/// as usual: the sum of the rounded numbers is not rounded again. They travel in the gradient's own
/// type, for no backend adds up fp8. A gradient that is not finite on one rank becomes NaN on all.
/// Source: Peng et al., "FP8-LM: Training FP8 Large Language Models", 2023.
/// Threads: the thread of the backward pass.
#pragma once

#include <memory>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/parallel/communication_hook.h"

namespace accelerate {

/// Rounds each in place; undefined ones are passed over. Collective over `group` by one all-reduce,
/// for which ranks give the same number of gradients in the same order; local where that is null.
void quantize_gradients(const std::vector<at::Tensor>& gradients, c10d::ProcessGroup* group);

/// Does so with the gradients of `weights` in each bucket, and gives the bucket to `inner`.
/// Waits for one small all-reduce per bucket.
class Fp8GradientHook final : public CommunicationHook {
 public:
  Fp8GradientHook(std::vector<at::Tensor> weights, std::unique_ptr<CommunicationHook> inner);

  Future reduce(const Group& group, c10d::GradBucket& bucket) override;

 private:
  const std::vector<at::Tensor> weights_;  // so that addresses stay theirs
  std::unordered_set<at::TensorImpl*> is_weight_;
  const std::unique_ptr<CommunicationHook> inner_;
};

}  // namespace accelerate
