/// How a bucket of gradients is reduced over the ranks.
///
/// Threads: the thread of the backward pass.
#pragma once

#include <memory>

#include <ATen/core/ivalue.h>
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

/// The hook for these options: comm_hook inside comm_wrapper; null for neither. A wrapper alone
/// wraps a plain all-reduce. Local. Errors: c10::ValueError naming options that contradict each
/// other.
std::unique_ptr<CommunicationHook> make_communication_hook(
    const DistributedDataParallelKwargs& options);

}  // namespace accelerate
