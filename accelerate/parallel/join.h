/// Lets ranks with unequal amounts of data train together: a rank whose data has ended shadows the
/// collectives of those that still train, until all have ended.
///
///   {
///     JoinScope join({find_stage<DistributedDataParallel>(model)}, /*enabled=*/true);
///     for (auto& batch : loader) { ... forward, backward, step ... }
///   }  // a rank that arrives early waits for the others
///
/// While the scope lives, ranks announce each gradient-enabled forward pass and each all-reduce of
/// a backward pass with a small all-gather. Ranks that reached its end join what is announced: they
/// add zeros to each gradient bucket, receive buffers, and rebuild buckets. So passes may come in
/// any order that all training ranks share: several models, several forward passes for one backward
/// pass, one backward pass through several models, passes that are never differentiated.
/// Gradients are sums over the training ranks, divided by the number of all ranks.
/// The parameters of an ended rank become outdated. At the end all replicas become equal to that of
/// the highest rank among those that trained longest, and the hook runs on all ranks, so that the
/// caller can synchronise further state (the optimizer's); neither happens if all trained equally
/// long. Gradients (`.grad`) stay as each rank left them.
/// Inside, buffers are refreshed from the highest rank that has data (elsewhere: from rank 0).
/// Forward passes without gradients are local and do not refresh buffers. Ranks that ended do not
/// take part in other collectives of the same group.
///
/// Ownership: the models must outlive the scope, and are in one scope at a time.
/// Errors: c10::Error, on all ranks and naming one that deviates, when ranks pass different models
///         or a different `enabled`, or when training ranks begin different passes (one that
///         synchronises gradients differs from one that accumulates them); c10::Error on a rank
///         that nests scopes. A scope that an exception leaves does not shadow the other ranks:
///         their next collective fails with the backend's own error.
///         The destructor throws what shadowing throws.
/// Collective: constructor and destructor, enabled or not (disabled: one all-gather, nothing else).
/// Threads: the rank's thread.
/// Mirrors: torch.distributed.algorithms.Join around DistributedDataParallel, with
///          divide_by_initial_world_size.
/// Differs: all-reduces are announced one by one; PyTorch assumes that each forward pass of the
///          first model is followed by one backward pass of each model.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "accelerate/parallel/ddp.h"

namespace accelerate {

class JoinScope {
 public:
  /// Called with the rank whose replica all ranks have taken over.
  using CatchUp = std::function<void(int source_rank)>;

  /// Without models it does nothing.
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
