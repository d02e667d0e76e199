/// Parameters divided among ranks along dim 0: each rank keeps its rows, gathers the others' when
/// an operator needs them, and gets the mean over ranks of its rows' gradients.
///
/// A parameter of n rows has ceil(n / ranks) rows on each rank (see base/shard_rows.h). A parameter
/// without dims counts as one row. A shard is an ordinary leaf tensor with the parameter's dtype
/// and its gradient, which is what optimizers train.
///
/// Parameters form groups, which are gathered and reduced together: those of the options, and of
/// the other parameters consecutive ones, up to the module that makes a group at least
/// `group_bytes` large.
///
/// A rank may keep more of a group from a forward pass to its backward pass than its shard: a part
/// of the gathered values, so that a few ranks, such as those of a node, have all of them.
///
/// With a param_dtype the parameters have that dtype from now on: shards are cast before they are
/// gathered. Gradients come in it, are sent in reduce_dtype, and are added up in the shards' dtype.
///
/// With offload, shards and their gradients are on the host. They are copied to the device before
/// they are gathered, and to the host after they were reduced, on a stream of their own.
///
/// A backward pass reduces a group when all its gradients are there, and what is left when it ends;
/// parameters of a group of which others have gradients send zeros.
/// One group at a time is on its way to shards and, where there are replicas, one to these. While
/// gradients are not synchronised, whole ones add up in the parameters, in reduce_dtype; the next
/// pass that synchronises reduces them.
///
/// Collective: everything but what says otherwise. Ranks must reach the same parameters in the same
///             order, and leave the same ones unused. In the first step they compare that before
///             each collective. A rank that later departs from what it did before says so with its
///             next reduction, and at the end of that backward pass all ranks compare what they
///             did: on CPUs, and on other devices one pass later, so that the host need not wait.
///             Until then a collective may have mixed values, or failed where sizes differ.
///             Simulated devices compare every call by themselves, as debug mode does.
/// A parameter and its shard have one version, so that autograd refuses a backward pass through
/// values that an optimizer's step has changed since, as it does without shards. Whether a
/// parameter is trained may change between steps, on all ranks alike.
/// A parameter whose gradient was reduced has one without values, so that
/// torch::nn::Module::zero_grad resets the shard's as well, and code that reads it gets an error.
/// A post-accumulate-grad hook of the user's runs first, on this rank's whole gradient; begin_step
/// finds one that was set since. torch::autograd::grad gives whole gradients of this rank, which
/// are not reduced.
///
/// Errors:  c10::ValueError naming the parameter that cannot be divided; c10::Error naming the one
///          whose reduced gradient is read; c10::Error on all ranks, naming two ranks and the
///          groups in which their orders differ, or the parameter whose gradient one of them lacks;
///          those of Residency. The simulator and debug mode refuse a gather or a reduction of
///          different groups, and name both. At the end of a WholeParameters
///          scope with writeback, c10::ValueError naming a parameter whose shard was changed
///          inside, as by an optimizer's step: the shards stay as they are then.
/// Threads: as Residency.
/// Mirrors: torch.distributed.fsdp.fully_shard (FSDP 2), which copies gathered parameters once
/// more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "accelerate/base/shard_rows.h"
#include "accelerate/comm/operations.h"
#include "accelerate/parallel/residency/late_number.h"
#include "accelerate/parallel/residency/residency.h"
#include "accelerate/parallel/residency/sharding_options.h"
#include "accelerate/parallel/residency/side_stream.h"
#include "accelerate/parallel/residency/step_comparison.h"
#include "accelerate/parallel/residency/use_trace.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate {
namespace internal {
class InitialParts;
}  // namespace internal

/// Who divides the parameters.
struct ShardGroups {
  /// The ranks that have a shard each.
  ProcessGroupPtr shards;
  /// Those of `shards` among which parameters are divided from a forward pass to its backward pass,
  /// as many on each; null: all of them.
  ProcessGroupPtr after_forward = nullptr;
  /// The ranks with the same shard of other replicas; null where there is one replica.
  ProcessGroupPtr replicas = nullptr;
  /// The ranks that begin with the values of its rank 0; null where ranks have equal values.
  ProcessGroupPtr all = nullptr;
};

class ShardedParameters {
 public:
  struct Shard {
    std::string name;
    at::Tensor parameter;
    at::Tensor shard;  // [rows of this rank, ...]
  };

  /// Divides the parameters of the module, which is the same on all ranks; those without elements
  /// stay as they are. Afterwards they are absent, on `device`. They move there group by group, so
  /// the device needs memory for the shards and one group; those of a model that was built in
  /// init_empty_weights get their values group by group, and no rank ever has the whole model. A
  /// shard takes ceil(rows / ranks) rows. Ignored parameters stay where they are.
  ShardedParameters(const torch::nn::Module& module, ShardGroups groups, c10::Device device,
                    ShardingOptions options = {});
  ~ShardedParameters();

  const std::vector<Shard>& shards() const { return shards_; }
  const std::shared_ptr<Residency>& residency() const { return residency_; }
  const ProcessGroupPtr& group() const { return groups_.shards; }

  /// Whether backward passes reduce gradients from now on. At first they do. Local.
  void set_synchronises(bool synchronises) { synchronises_ = synchronises; }

  /// Gives a shard a gradient that was reduced before, as when a checkpoint is loaded. Local.
  void set_gradient(size_t shard, at::Tensor gradient);

  /// Before a step's forward pass: drops what a backward pass left that an exception ended, and the
  /// gradients of shards whose parameters' the module's zero_grad has reset, and finds hooks that
  /// parameters were given. Local.
  void begin_step();

 private:
  class GatheredGroup;
  class GradientHook;
  class ReducedGradient;
  struct Reduction;
  struct HostCopy;
  struct PlannedGroup;

  // What a sum of gradients is divided by before and after they are added up.
  struct Division {
    double before = 1, after = 1;
  };

  std::vector<PlannedGroup> planned_groups(const torch::nn::Module& module) const;
  at::ScalarType kept_dtype(const at::Tensor& parameter) const;
  at::TensorOptions shard_place() const;
  void make_empty_parts(std::vector<PlannedGroup>& planned, internal::InitialParts& parts) const;
  void add_group(PlannedGroup planned, internal::InitialParts& initial);
  bool departed() const;
  ShardRows rows_of_rank(const at::Tensor& parameter) const;
  void follow_module(size_t group);
  void make_place(size_t shard);
  void follow_zero_grad(size_t shard);
  void gradient_is_ready(size_t group, size_t shard);
  void keep_whole_gradient(size_t shard);
  bool mark_gradients(size_t group);
  void note_reduction(size_t group);
  void compare_reduction(int group);
  void reduce(size_t group);
  at::Tensor take_gradient(size_t shard, at::TensorOptions options);
  void advance_reductions();
  Division division(at::ScalarType dtype) const;
  void add_to_gradients(const Reduction& reduction);
  void add_to_gradient(size_t shard, const at::Tensor& padded);
  void copy_to_host(std::vector<size_t> shards, std::vector<at::Tensor> means);
  void finish_copies(size_t count);
  bool some_rank_departed();
  void end_backward();

  struct Group {
    size_t begin = 0, end = 0;     // in shards_
    std::vector<bool> ready;       // whose gradients this backward pass has made
    std::string purpose;           // of its reductions
    std::string marks, marks_now;  // GradientMarks by parameter, at the last reduction and now
  };

  const ShardGroups groups_;
  const c10::Device device_;
  const ShardingOptions options_;
  // Hooks outlive this where code holds the parameters longer.
  const std::shared_ptr<ShardedParameters*> self_;
  const std::shared_ptr<Residency> residency_;
  std::vector<Shard> shards_;
  std::vector<at::ScalarType> reduce_dtypes_;  // by shard
  // By shard: what the parameter has for a gradient once that was reduced. Undefined: not yet, or
  // not since zero_grad.
  std::vector<at::Tensor> reduced_;
  std::vector<bool> has_place_hook_;  // by shard: whether a gradient finds its place
  std::vector<Group> reduced_together_;
  UseTrace reductions_;
  std::optional<StepComparison> comparison_;  // none where ranks need not compare what they do
  // How many ranks had departed, by the reductions of this backward pass, and of the one before
  // where the host did not wait for it. Undefined: nothing was reduced.
  at::Tensor departed_;
  std::unique_ptr<internal::LateNumber> earlier_departed_;
  std::unique_ptr<Reduction> scattering_;                      // on its way to the shards
  std::unique_ptr<Reduction> replicating_;                     // being added up over replicas
  const std::shared_ptr<internal::SideStream> copies_stream_;  // null without offload
  std::vector<HostCopy> copies_;  // of gradients, on their way to the host
  bool synchronises_ = true;
  std::optional<int> backward_;  // the backward pass at whose end gradients are reduced
};

}  // namespace accelerate
