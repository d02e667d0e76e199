/// Gradients that travel in 16 bits.
///
/// Source: what torch.distributed.algorithms.ddp_comm_hooks' fp16 and bf16 hooks and wrappers do.
/// Threads: the thread of the backward pass; what remains to be done when a bucket has arrived is
///          done by whoever completes its operation.
#pragma once

#include <memory>
#include <utility>

#include <c10/core/ScalarType.h>

#include "accelerate/parallel/communication_hook.h"

namespace accelerate {

/// Divides, and sums over the ranks.
class MeanHook final : public CommunicationHook {
 public:
  Future reduce(const Group& group, c10d::GradBucket& bucket) override;
};

/// Gives `inner` the bucket in `dtype`, and casts what comes of it back. Complex gradients are cast
/// part by part. In fp16, gradients beyond 65,504 become infinite.
class CastHook final : public CommunicationHook {
 public:
  CastHook(c10::ScalarType dtype, std::unique_ptr<CommunicationHook> inner)
      : dtype_(dtype), inner_(std::move(inner)) {}

  Future reduce(const Group& group, c10d::GradBucket& bucket) override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  const c10::ScalarType dtype_;
  const std::unique_ptr<CommunicationHook> inner_;
};

}  // namespace accelerate
