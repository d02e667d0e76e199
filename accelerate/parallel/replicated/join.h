/// Training on unequal amounts of data: a rank whose data has ended shadows the collectives of
/// those that still train, until all have ended.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <c10/core/Device.h>

#include "accelerate/comm/process_group.h"

namespace accelerate {

class Joinable;

/// Called before each collective of a model; implemented by JoinScope.
class JoinListener {
 public:
  /// What a gradient-enabled forward pass will do.
  struct Forward {
    bool synchronises = false;
    bool rebuilds_buckets = false;
    bool broadcasts_buffers = false;
  };
  /// The state of the other ranks at that moment.
  struct Peers {
    std::vector<int> ended;  ///< the ranks whose data has ended
    int leader = 0;          ///< the highest rank that still has data
  };
  virtual ~JoinListener() = default;
  /// Collective over the group.
  virtual Peers before_forward(Joinable& technique, const Forward& forward) = 0;
  /// Before each all-reduce of a backward pass. `slot` is the bucket's number; the number of
  /// buckets stands for the map of used parameters. Collective, but does not wait. Runs on the
  /// thread of the backward pass.
  virtual void before_all_reduce(Joinable& technique, int64_t slot, int64_t numel) = 0;
};

/// A technique whose collectives a rank without data can follow; see Technique::joinable.
class Joinable {
 public:
  /// While set, `listener` is called before the collectives of gradient-enabled passes, and passes
  /// without gradients are local. Null: none. Local.
  virtual void set_join(JoinListener* listener) = 0;

  /// Shadows the collectives of a forward pass that the other ranks announced, on a rank without
  /// data, with rank `leader` in the place of rank 0.
  virtual void shadow_forward(const JoinListener::Forward& forward, int leader) = 0;
  /// Shadows an all-reduce with zeros. This rank's own gradients stay as they are.
  /// Errors: c10::Error if what was announced has another size on this rank.
  virtual void shadow_all_reduce(int64_t slot, int64_t numel) = 0;
  /// Makes all ranks' models, buffers included, equal to that of rank `source`. Collective.
  virtual void broadcast_replica(int source) = 0;

  /// The ranks that train the model together.
  virtual const ProcessGroupPtr& group() const = 0;
  /// How many such techniques the group had before this one; equal on all ranks.
  virtual int64_t ordinal() const = 0;
  /// The device on which gradients are reduced.
  virtual c10::Device device() const = 0;

 protected:
  ~Joinable() = default;
};

/// Lets ranks with unequal amounts of data train together: a rank whose data has ended shadows the
/// collectives of those that still train, until all have ended.
///
///   {
///     JoinScope join({find_technique<DistributedDataParallel>(model)}, /*enabled=*/true);
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
/// Ownership: the techniques must outlive the scope, and are in one scope at a time.
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
class JoinScope {
 public:
  /// Called with the rank whose replica all ranks have taken over.
  using CatchUp = std::function<void(int source_rank)>;

  /// Without techniques it does nothing.
  JoinScope(std::vector<Joinable*> techniques, bool enabled, CatchUp catch_up = {});
  ~JoinScope() noexcept(false);
  JoinScope(JoinScope&& other) noexcept;
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;

 private:
  class Session;

  std::unique_ptr<Session> session_;  // null: disabled, moved from
};

}  // namespace accelerate
