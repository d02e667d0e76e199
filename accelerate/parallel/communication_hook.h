/// How a bucket of gradients is reduced over the ranks.
///
/// Threads: the thread of the backward pass; a bucket is completed on the thread that completes its
///          operation.
#pragma once

#include <memory>
#include <utility>

#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "accelerate/config/kwargs_handlers.h"

namespace accelerate {

struct StateDict;

class CommunicationHook {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
  using Future = c10::intrusive_ptr<c10::ivalue::Future>;

  virtual ~CommunicationHook() = default;

  /// Starts to compute the mean over ranks in the bucket's buffer. The future's value is that
  /// buffer, or the error. Collective: ranks reduce buckets in the same order.
  virtual Future reduce(const Group& group, c10d::GradBucket& bucket) = 0;

  /// This rank's memory from step to step; empty unless overridden. Local.
  virtual StateDict state_dict() const;
  /// Errors: c10::ValueError for the state of another kind of hook; nothing has changed then.
  virtual void load_state_dict(const StateDict& state);
};

/// Divides, and sums over the ranks.
class MeanHook final : public CommunicationHook {
 public:
  Future reduce(const Group& group, c10d::GradBucket& bucket) override;
};

/// Passes the bucket in `dtype` to `inner`, and casts the result back. The real and imaginary parts
/// of complex gradients are cast one by one. In fp16, gradients beyond 65,504 become infinite.
/// Source: the fp16 and bf16 hooks and wrappers of torch.distributed.algorithms.ddp_comm_hooks.
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

/// The hook for these options: comm_hook inside comm_wrapper; null for neither. A wrapper alone
/// wraps a plain all-reduce. Local. Errors: c10::ValueError naming options that contradict each
/// other.
std::unique_ptr<CommunicationHook> make_communication_hook(
    const DistributedDataParallelKwargs& options);

}  // namespace accelerate
