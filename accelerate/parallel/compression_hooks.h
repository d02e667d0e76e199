/// Gradients that are reduced in 16 bits.
///
/// Source: what torch.distributed.algorithms.ddp_comm_hooks' fp16 and bf16 hooks and wrappers do.
/// Threads: the thread of the backward pass; a bucket is completed on the thread that completes its
///          operation.
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

/// Passes the bucket in `dtype` to `inner`, and casts the result back. The real and imaginary parts
/// of complex gradients are cast one by one. In fp16, gradients beyond 65,504 become infinite.
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
