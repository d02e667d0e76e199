/// What becomes of a bucket of gradients on its way to the other ranks.
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

class CommunicationHook {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
  using Future = c10::intrusive_ptr<c10::ivalue::Future>;

  virtual ~CommunicationHook() = default;

  /// Begins to put the mean over ranks into the bucket's buffer. The future is that buffer, once it
  /// is done, or what went wrong. Collective: ranks reduce buckets in the same order.
  virtual Future reduce(const Group& group, c10d::GradBucket& bucket) = 0;
};

/// The hook that `options` ask for: comm_hook inside comm_wrapper. Null: none. A wrapper alone
/// wraps a plain all-reduce. Local. Errors: c10::ValueError naming options that contradict each
/// other.
std::unique_ptr<CommunicationHook> make_communication_hook(
    const DistributedDataParallelKwargs& options);

}  // namespace accelerate
