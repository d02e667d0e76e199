/// Data-parallel training of one model: every rank has a replica, and the backward pass averages
/// gradients. c10d::Reducer does the bucketing and the overlap; this class drives it.
///
/// Collective: the constructor (which compares the ranks' models and sets all replicas to rank
/// 0's), and each backward pass whose forward pass ran with synchronisation on.
/// Errors: c10::ValueError for options that contradict each other or the model, and, on all ranks,
///         naming the first parameter or buffer in which the ranks' models differ. If a backward
///         pass missed parameters, the next forward pass throws a c10::Error that names them.
/// Threads: the rank's thread.
/// Mirrors: torch.nn.parallel.DistributedDataParallel.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "accelerate/comm/operations.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/parallel/stage.h"

namespace c10d {
class Logger;
}  // namespace c10d

namespace torch::autograd {
struct Node;
}  // namespace torch::autograd

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate {

class CommunicationHook;
class DistributedDataParallel;

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
  virtual Peers before_forward(DistributedDataParallel& model, const Forward& forward) = 0;
  /// Before each all-reduce of a backward pass. `slot` is the bucket's number; the number of
  /// buckets stands for the map of used parameters. Collective, but does not wait. Runs on the
  /// thread of the backward pass.
  virtual void before_all_reduce(DistributedDataParallel& model, int64_t slot, int64_t numel) = 0;
};

/// Checks the options as far as no model and no group is needed, so that jobs whose models are not
/// replicated (one rank, TPUs) refuse them too. Local. Errors: c10::ValueError naming an option
/// that is out of range or contradicts another.
void check_ddp_options(const DistributedDataParallelKwargs& options);

/// Compares the ranks' models, and gives all ranks rank 0's parameters and buffers. Collective.
/// Errors: c10::ValueError, on all ranks, if names, order, dtypes, shapes or strides of parameters
///         and buffers differ, or which of them are trained. It names the first difference and the
///         ranks that have it.
void replicate(const ProcessGroupPtr& group, const torch::nn::Module& module);

class DistributedDataParallel final : public Stage {
 public:
  DistributedDataParallel(std::shared_ptr<torch::nn::Module> module, ProcessGroupPtr group,
                          const DistributedDataParallelKwargs& options);
  /// Uses `hook` instead of the communication hook that `options` ask for.
  DistributedDataParallel(std::shared_ptr<torch::nn::Module> module, ProcessGroupPtr group,
                          const DistributedDataParallelKwargs& options,
                          std::unique_ptr<CommunicationHook> hook);
  ~DistributedDataParallel() override;

  static constexpr std::string_view kName = "ddp";
  std::string_view name() const override { return kName; }

  /// before_forward and after_forward around the pass.
  void forward(ForwardPass& pass) override;

  /// While the count is above 0, gradients only accumulate on their rank. See NoSyncScope. Local.
  NoSyncCount no_sync_count() const override { return no_sync_count_; }
  /// Whether the next forward pass prepares a synchronising backward pass.
  bool require_sync() const { return *no_sync_count_ == 0; }

  /// To be called around every forward pass. after_forward returns the tensors that the caller uses
  /// instead of the outputs; where needs_outputs() is false, it may be given none.
  void before_forward();
  std::vector<at::Tensor> after_forward(std::vector<at::Tensor> outputs);
  bool needs_outputs() const;

  /// Lets the next backward pass synchronise although its forward pass did not prepare for it, for
  /// loops that learn only afterwards that this micro-step was the last. All ranks call it before
  /// that backward pass; it is local itself. Without trainable parameters it does nothing.
  /// Errors: c10::Error with static_graph before the first pass that synchronises.
  void trigger_sync_in_backward() override;

  /// How parameters are put into buckets, which were used since the last synchronising pass, the
  /// communication hook's memory ("hook." tensors), and the buffers where they differ from rank 0's
  /// ("buffer."). Load it on all ranks, before gradients are loaded. Local.
  StateDict state_dict() const override;
  /// A state of another number of ranks is ignored. Buckets and the hook's memory are ignored too
  /// if the options that they depend on have changed. Errors: c10::ValueError for a state of
  /// another model; nothing has changed then.
  void load_state_dict(const StateDict& state, bool same_ranks = true) override;

  // ---- Used by JoinScope.

  /// While set, `listener` is called before the collectives of gradient-enabled passes, and passes
  /// without gradients are local. Null: none. Local.
  void set_join(JoinListener* listener);
  bool joined() const { return join_ != nullptr; }

  /// Shadows the collectives of a forward pass that the other ranks announced, on a rank without
  /// data: rebuilds the buckets, and receives the buffers from rank `leader`.
  void shadow_forward(const JoinListener::Forward& forward, int leader);
  /// Shadows an all-reduce with zeros. This rank's own gradients stay as they are.
  /// Errors: c10::Error if the announced bucket has another size on this rank.
  void shadow_all_reduce(int64_t slot, int64_t numel);
  /// Makes all replicas, buffers included, equal to that of rank `source`. Collective.
  void adopt_replica(int source);

  const ProcessGroupPtr& group() const { return group_; }
  /// How many models the group had before this one; equal on all ranks.
  int64_t ordinal() const { return ordinal_; }
  /// The device on which gradients are reduced.
  c10::Device device() const;

 private:
  struct Reducer;
  class HookOfReducer;
  class Sink;

  void make_reducer();
  // Routes the outputs through one autograd node; see Sink.
  std::vector<at::Tensor> drain(std::vector<at::Tensor> outputs);
  std::vector<at::Tensor> replica() const;
  void check_finished() const;
  // The options that the buckets and the hook's memory depend on.
  std::string bucket_options() const;
  std::vector<std::string> names_of(const std::vector<size_t>& parameters) const;
  std::vector<size_t> parameters_of(const std::vector<std::string>& names) const;
  void check_replicas(const std::vector<int>& ended) const;

  const std::shared_ptr<torch::nn::Module> module_;
  const ProcessGroupPtr group_;
  const DistributedDataParallelKwargs options_;
  const int64_t ordinal_;
  std::vector<at::Tensor> buffers_;
  std::vector<std::pair<std::string, at::Tensor>> replicas_;  // the trainable parameters
  std::string replicas_name_;
  std::shared_ptr<Reducer> reducer_;
  // The Reducer dereferences its logger unconditionally.
  std::shared_ptr<c10d::Logger> logger_;
  std::unique_ptr<CommunicationHook> hook_;  // null: the Reducer's own all-reduce
  const NoSyncCount no_sync_count_ = std::make_shared<int>(0);
  // The end of the last forward pass's graph, with find_unused_parameters.
  std::weak_ptr<torch::autograd::Node> last_sink_;
  // Buffers only need refreshing after a pass in which those of the ranks could become different.
  bool require_buffer_sync_ = true;
  JoinListener* join_ = nullptr;
};

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
