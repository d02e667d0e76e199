/// Gradients that are rounded to fp8 before they are reduced (MS-AMP's level O1).
///
/// A weight's gradient is rounded to E4M3 with a scale that is equal on all ranks, and then
/// averaged as usual: the sum of the rounded numbers is not rounded again. It is reduced in its own
/// type, because no backend sums fp8. A gradient that is not finite on one rank becomes NaN on all.
/// Source: Peng et al., "FP8-LM: Training FP8 Large Language Models", 2023.
/// Threads: the thread of the backward pass.
#pragma once

#include <memory>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/parallel/communication_hook.h"

namespace accelerate {

/// Rounds each gradient in place; undefined ones are skipped. Collective over `group`, with one
/// all-reduce for which ranks pass the same number of gradients in the same order; local if `group`
/// is null.
void quantize_gradients(const std::vector<at::Tensor>& gradients, c10d::ProcessGroup* group);

/// Rounds the gradients of `weights` in each bucket, and passes the bucket to `inner`. Waits for
/// one small all-reduce per bucket.
class Fp8GradientHook final : public CommunicationHook {
 public:
  Fp8GradientHook(std::vector<at::Tensor> weights, std::unique_ptr<CommunicationHook> inner);

  Future reduce(const Group& group, c10d::GradBucket& bucket) override;

 private:
  const std::vector<at::Tensor> weights_;  // keeps the addresses in is_weight_ valid
  std::unordered_set<at::TensorImpl*> is_weight_;
  const std::unique_ptr<CommunicationHook> inner_;
};

}  // namespace accelerate
