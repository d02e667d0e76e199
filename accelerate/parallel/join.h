/// Lets ranks with unequal amounts of data train together: a rank whose data has ended keeps
/// answering the collectives of those that still train, until all have ended.
///
///   {
///     JoinScope join({find_stage<DistributedDataParallel>(model)}, /*enabled=*/true);
///     for (auto& batch : loader) { ... forward, backward, step ... }
///   }  // a rank that comes here early stays until the others come
///
/// While the scope lives, ranks announce each gradient-enabled forward pass and each all-reduce of
/// a backward pass with a small all-gather, and those that came to its end do what is announced:
/// they add nothing to each gradient bucket, receive buffers, rebuild buckets. So passes may come
/// in any order that all training ranks agree on: several models, several forward passes for one
/// backward pass, one backward pass through several models, passes that are never differentiated.
/// Gradients are sums over the training ranks, divided by the number of all ranks.
/// An ended rank's parameters fall behind. At the end all replicas become equal to that of the
/// highest rank among those that trained longest, and the hook runs, on all ranks, so that the
/// caller can send what else belongs to it (the optimizer's state); neither happens if all trained
/// equally long. Gradients (`.grad`) stay as each rank left them.
/// Inside, buffers are refreshed from the highest rank that has data (elsewhere: from rank 0).
/// Forward passes without gradients are local and do not refresh buffers. Other collectives of the
/// same group would not be answered by ranks that ended.
///
/// Ownership: the models must outlive the scope, and are in one scope at a time.
/// Errors: c10::Error, on all ranks alike and naming one that deviates, when ranks pass other
///         models or another `enabled`, or when those that train begin different passes (one that
///         synchronises gradients and one that accumulates them are different); c10::Error on a
///         rank that nests scopes. A scope that an exception leaves does not follow the
///         others: their next collective fails with the backend's own error.
///         The destructor throws what following the others throws.
/// Collective: constructor and destructor, enabled or not (disabled: one all-gather, nothing else).
/// Threads: the rank's thread.
/// Mirrors: torch.distributed.algorithms.Join around DistributedDataParallel, with
///          divide_by_initial_world_size.
/// Differs: all-reduces are announced one by one, where the peer takes for granted that each
///          forward pass of the first model is followed by one backward pass of each.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "accelerate/parallel/ddp.h"

namespace accelerate {

class JoinScope {
 public:
  /// Gets the rank whose replica all have from now on.
  using CatchUp = std::function<void(int source_rank)>;

  /// No models (nothing is replicated): does nothing.
  JoinScope(std::vector<DistributedDataParallel*> models, bool enabled, CatchUp catch_up = {});
  ~JoinScope() noexcept(false);
  JoinScope(JoinScope&& other) noexcept;
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;

 private:
  class Session;

  std::unique_ptr<Session> session_;  // null: disabled, moved from
};

}  // namespace accelerate
