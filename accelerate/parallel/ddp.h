/// Data-parallel training of one model: every rank has a replica, gradients are averaged during the
/// backward pass. A thin hand on c10d::Reducer, which does the bucketing and the overlap.
///
/// Collective: the constructor (replicas are checked against each other and set to rank 0's), and
/// each backward pass that follows before_forward/after_forward with synchronisation on.
/// Errors: c10::ValueError for options that contradict each other or the model, and, on all ranks
///         alike, naming the first parameter or buffer in which ranks' models differ; c10::Error
///         with the parameters' names, from the next forward pass, if a backward pass did not reach
///         all of them.
/// Threads: the rank's thread.
/// Mirrors: torch.nn.parallel.DistributedDataParallel.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/tensors/tree.h"

namespace c10d {
class Logger;
class ProcessGroup;
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
struct StateDict;

/// Hears what a model is about to do with its group, before it does: JoinScope's ear.
class JoinListener {
 public:
  /// What a gradient-enabled forward pass will do.
  struct Forward {
    bool synchronises = false;
    bool rebuilds_buckets = false;
    bool broadcasts_buffers = false;
  };
  /// Where the other ranks are at that moment.
  struct Peers {
    std::vector<int> ended;  ///< have no more data
    int leader = 0;          ///< the highest rank that has
  };
  virtual ~JoinListener() = default;
  /// Collective over the group.
  virtual Peers before_forward(DistributedDataParallel& model, const Forward& forward) = 0;
  /// Before each all-reduce of a backward pass: `slot` is the bucket's number; the number of
  /// buckets stands for the map of used parameters. Collective, but does not wait. On the thread
  /// of the backward pass.
  virtual void before_all_reduce(DistributedDataParallel& model, int64_t slot, int64_t numel) = 0;
};

/// What can be said of options without a model and a group: a job whose models are not wrapped,
/// with one rank or on TPUs, should refuse them too. Local. Errors: c10::ValueError naming an
/// option that is out of range or contradicts another.
void check_ddp_options(const DistributedDataParallelKwargs& options);

class DistributedDataParallel {
 public:
  DistributedDataParallel(std::shared_ptr<torch::nn::Module> module,
                          c10::intrusive_ptr<c10d::ProcessGroup> group,
                          const DistributedDataParallelKwargs& options);
  /// With a hook in place of that of `options`.
  DistributedDataParallel(std::shared_ptr<torch::nn::Module> module,
                          c10::intrusive_ptr<c10d::ProcessGroup> group,
                          const DistributedDataParallelKwargs& options,
                          std::unique_ptr<CommunicationHook> hook);
  ~DistributedDataParallel();

  /// Lets gradients only accumulate on their rank, until silences() is counted down again; that
  /// outlives the model for who holds it. See NoSyncScope. Local.
  void silence() { ++*silences_; }
  const std::shared_ptr<int>& silences() const { return silences_; }
  /// Whether the next forward pass prepares a synchronising backward pass: nobody silences it.
  bool require_sync() const { return *silences_ == 0; }

  /// To be called around every forward pass. Returns what the caller has to take for the outputs.
  /// Where needs_outputs() is false, none need to be given.
  void before_forward();
  std::vector<at::Tensor> after_forward(std::vector<at::Tensor> outputs);
  bool needs_outputs() const;

  /// Lets the next backward pass synchronise although its forward pass did not prepare for it: what
  /// to do when only afterwards it is known that this micro-step was the last. Before that pass
  /// ranks call it alike; it is local itself. Without trainable parameters it does nothing.
  /// Errors: c10::Error with static_graph before the first pass that synchronises.
  void trigger_sync_in_backward();

  /// What of this rank a model that goes on exactly needs besides the module: how parameters are
  /// put into buckets, which were used since the last synchronising pass, what the communication
  /// hook remembers ("hook." tensors), and, where they are not rank 0's, the buffers ("buffer.").
  /// To be loaded by as many ranks as saved it, on all of them, before gradients are loaded. Local.
  StateDict state_dict() const;
  /// Buckets and the hook's memory stay as they are if options that they follow from have changed.
  /// Errors: c10::ValueError for a state of another model; nothing has changed then.
  void load_state_dict(const StateDict& state);

  // ---- For JoinScope.

  /// While set, gradient-enabled passes are announced to `listener`, and passes without gradients
  /// are local. Local.
  void set_join(JoinListener* listener);
  bool joined() const { return join_ != nullptr; }

  /// This rank's part in what the others announced, when it has no data of its own: the buckets
  /// are rebuilt, the buffers received from rank `leader`.
  void follow_forward(const JoinListener::Forward& forward, int leader);
  /// Nothing is added to the gradients of the others; those of this rank stay as they are.
  /// Errors: c10::Error if the bucket announced is not the one that this rank has there.
  void follow_all_reduce(int64_t slot, int64_t numel);
  /// Makes all replicas, buffers included, equal to that of rank `source`. Collective.
  void adopt_replica(int source);

  const c10::intrusive_ptr<c10d::ProcessGroup>& group() const { return group_; }
  /// How many models the group had before this one: the same on all ranks.
  int64_t ordinal() const { return ordinal_; }
  /// Where its gradients are reduced.
  c10::Device device() const;

 private:
  struct Reducer;
  class HookOfReducer;
  class Sink;

  void make_reducer();
  void register_hook(const std::vector<bool>& sparse);
  // The outputs as a node of ours gives them.
  std::vector<at::Tensor> drain(std::vector<at::Tensor> outputs);
  std::vector<at::Tensor> replica() const;
  void check_finished() const;
  // What the buckets and the hook's memory follow from.
  std::string bucket_options() const;
  std::vector<std::string> names_of(const std::vector<size_t>& parameters) const;
  std::vector<size_t> parameters_of(const std::vector<std::string>& names) const;
  void check_replicas(const std::vector<int>& ended) const;

  const std::shared_ptr<torch::nn::Module> module_;
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const DistributedDataParallelKwargs options_;
  const int64_t ordinal_;
  std::vector<at::Tensor> buffers_;
  std::vector<std::pair<std::string, at::Tensor>> replicas_;  // the trainable parameters
  std::string replicas_name_;
  std::shared_ptr<Reducer> reducer_;
  // The Reducer takes for granted that it has one.
  std::shared_ptr<c10d::Logger> logger_;
  std::unique_ptr<CommunicationHook> hook_;  // null: the Reducer's own all-reduce
  const std::shared_ptr<int> silences_ = std::make_shared<int>(0);
  // Where the last forward pass's graph ends, with find_unused_parameters.
  std::weak_ptr<torch::autograd::Node> last_sink_;
  // Buffers only need refreshing after a pass in which ranks could have moved apart.
  bool require_buffer_sync_ = true;
  JoinListener* join_ = nullptr;
};

/// after_forward for the tensors in any tree.
template <typename Tree>
Tree after_forward(DistributedDataParallel& ddp, Tree output) {
  if (!ddp.needs_outputs()) {
    ddp.after_forward({});
    return output;
  }
  std::vector<at::Tensor> tensors;
  tree_for_each(output, [&tensors](const at::Tensor& tensor) { tensors.push_back(tensor); });
  tensors = ddp.after_forward(std::move(tensors));
  auto next = tensors.begin();
  return tree_map(std::move(output), [&next](const at::Tensor& /*tensor*/) { return *next++; });
}

}  // namespace accelerate
