/// Data-parallel training of one model: every rank has a replica, and the backward pass averages
/// gradients. c10d::Reducer does the bucketing and the overlap; this class drives it.
///
/// Collective: the constructor (which compares the ranks' models and sets all replicas to rank
/// 0's), and each backward pass whose forward pass ran with synchronisation on.
/// Errors: c10::ValueError for options that contradict each other or the model, and, on all ranks,
///         naming the first parameter or buffer in which the ranks' models differ. If a backward
///         pass missed parameters, the next forward pass throws a c10::Error that names them. With
///         static_graph a forward pass inside of a backward pass is a c10::Error.
/// Threads: the rank's thread.
/// Mirrors: torch.nn.parallel.DistributedDataParallel.
/// Differs: several forward passes before a backward pass train a model with buffers as one process
///          would; see backward_hooks.h. There it is an error of autograd. Several backward passes
///          after a forward pass, or after several ones, all synchronise; there the first one does.
///          Parameters may be frozen and unfrozen between steps, on all ranks alike.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/forward/technique.h"
#include "accelerate/parallel/backward_hooks.h"
#include "accelerate/parallel/equal_along.h"
#include "accelerate/parallel/replicated/join.h"
#include "accelerate/parallel/replicated/trained_set.h"

namespace c10d {
class Logger;
}  // namespace c10d

namespace accelerate {

class CommunicationHook;
struct TechniqueContext;

/// Checks the options as far as no model and no group is needed, so that jobs whose models are not
/// replicated (one rank, TPUs) refuse them too. Local. Errors: c10::ValueError naming an option
/// that is out of range or contradicts another.
void check_ddp_options(const DistributedDataParallelKwargs& options);

class DistributedDataParallel final : public Technique, public Joinable {
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

  /// From now on ranks compare their parameters before passes that synchronise, which is one more
  /// collective, where the Runtime does not: but not in a join scope, nor in a forward pass inside
  /// of a backward pass. `along`: with the group.
  void compare_by_gathering(RanksAlong along) { gathering_ = std::move(along); }

  /// To be called around every forward pass. after_forward returns the tensors that the caller uses
  /// instead of the outputs. Where needs_outputs() is false it may be given none; then the pass has
  /// one backward pass before the next forward pass.
  void before_forward();
  std::vector<at::Tensor> after_forward(std::vector<at::Tensor> outputs);
  bool needs_outputs() const;

  /// Lets the next backward pass synchronise although its forward pass did not prepare for it, for
  /// loops that learn only afterwards that this micro-step was the last. All ranks call it before
  /// that backward pass; it is local itself. Without trainable parameters it does nothing.
  /// Errors: c10::Error with static_graph before the first pass that synchronises.
  void trigger_sync_in_backward() override;
  /// Errors: as above.
  void begin_adding(at::TensorList reduced) override;

  /// How parameters are put into buckets, which were used since the last synchronising pass, the
  /// communication hook's memory ("hook." tensors), and the buffers where they differ from rank 0's
  /// ("buffer."). Load it on all ranks, before gradients are loaded. Local.
  StateDict state_dict() const override;
  /// A state of another number of ranks is ignored. Buckets and the hook's memory are ignored too
  /// if the options that they depend on have changed. Errors: c10::ValueError for a state of
  /// another model; nothing has changed then.
  void load_state_dict(const StateDict& state, bool same_ranks = true) override;

  // ---- Joinable.

  Joinable* joinable() override { return this; }
  void set_join(JoinListener* listener) override;
  bool joined() const { return join_ != nullptr; }
  void shadow_forward(const JoinListener::Forward& forward, int leader) override;
  void shadow_all_reduce(int64_t slot, int64_t numel) override;
  void broadcast_replica(int source) override;
  const ProcessGroupPtr& group() const override { return group_; }
  int64_t ordinal() const override { return ordinal_; }
  c10::Device device() const override;

 private:
  struct Reducer;
  class HookOfReducer;
  class Sink;

  void make_reducer();
  // Makes another one where parameters were unfrozen that it does not reduce, or some of those
  // frozen for which it waits. Collective then.
  void refresh_trained();
  // Lets a backward pass from `outputs` synchronise that no forward pass has prepared for.
  void prepare_late(const std::vector<at::Tensor>& outputs);
  // Routes the outputs through one autograd node; see Sink.
  std::vector<at::Tensor> drain(std::vector<at::Tensor> outputs);
  std::vector<at::Tensor> replica() const;
  void check_finished() const;
  // The options that the buckets and the hook's memory depend on.
  std::string bucket_options() const;
  std::vector<std::string> names_of(const std::vector<size_t>& parameters) const;
  std::vector<size_t> parameters_of(const std::vector<std::string>& names) const;

  const std::shared_ptr<torch::nn::Module> module_;
  const ProcessGroupPtr group_;
  const DistributedDataParallelKwargs options_;
  const int64_t ordinal_;
  BufferRefresh refresh_;
  const std::string replicas_name_;                           // what comparisons call them
  std::vector<std::pair<std::string, at::Tensor>> replicas_;  // the trainable parameters
  std::optional<RanksAlong> gathering_;  // that compare the replicas by themselves
  internal::TrainedSet trained_;
  std::shared_ptr<Reducer> reducer_;
  // The Reducer dereferences its logger unconditionally.
  std::shared_ptr<c10d::Logger> logger_;
  std::unique_ptr<CommunicationHook> hook_;  // null: the Reducer's own all-reduce
  const NoSyncCount no_sync_count_ = std::make_shared<int>(0);
  JoinListener* join_ = nullptr;
};

/// For models that ranks train together. With MS-AMP the gradients of fp8 layers travel in fp8.
std::unique_ptr<Technique> make_ddp_technique(const TechniqueContext& context);

}  // namespace accelerate
