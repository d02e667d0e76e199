/// Parameters divided among ranks along dim 0: each rank keeps its rows, gathers the others' when
/// an operator needs them, and gets the mean over ranks of its rows' gradients.
///
/// A parameter of n rows has ceil(n / ranks) rows on each rank (see base/shard_rows.h). A parameter
/// without dims counts as one row. A shard is an ordinary leaf tensor with the parameter's dtype
/// and its gradient, which is what optimizers train. The codes of a quantised parameter
/// (value_at_use.h) are divided in its place, and gathered as they are.
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
/// With offload, shards and their gradients are on the host, all or those of the last groups. They
/// are copied to the device before they are gathered, and to the host after they were reduced, on a
/// stream of their own.
///
/// sharded_gradients.h says when gradients are reduced.
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
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/parallel/residency/residency.h"
#include "accelerate/parallel/residency/shard.h"
#include "accelerate/parallel/residency/sharded_gradients.h"
#include "accelerate/parallel/residency/sharding_options.h"
#include "accelerate/parallel/residency/side_stream.h"
#include "accelerate/parallel/residency/step_comparison.h"

namespace accelerate {
namespace internal {
class GatheredGroup;
class InitialParts;
class ShardDisks;
}  // namespace internal

class SwappedTensors;

class ShardedParameters {
 public:
  using Shard = ParameterShard;

  /// Divides the parameters of the module, which is the same on all ranks; those without elements
  /// stay as they are. Afterwards they are absent, on `device`. They move there group by group, so
  /// the device needs memory for the shards and one group; those of a model that was built in
  /// init_empty_weights get their values group by group, and no rank ever has the whole model. A
  /// shard takes ceil(rows / ranks) rows. Ignored parameters stay where they are.
  ShardedParameters(const torch::nn::Module& module, ShardGroups groups, c10::Device device,
                    ShardingOptions options = {});
  ~ShardedParameters();

  const std::vector<Shard>& shards() const { return gradients_.shards(); }
  const std::shared_ptr<Residency>& residency() const { return residency_; }
  /// Before groups are gathered in a pass: see PackedParameters::refresh.
  void refresh_packed();
  /// See Residency::unshard. Collective.
  void unshard(int group);
  const ProcessGroupPtr& group() const { return groups_.shards; }

  /// Where shards are between the steps of an optimizer; null: in memory.
  std::shared_ptr<SwappedTensors> disk() const;
  /// To be called with each shard that an optimizer has changed, while it is in memory, where
  /// shards are on a disk: its rows are kept in param_dtype. It may be called longer than this
  /// lives.
  std::function<void(const at::Tensor& shard)> keeps_rows() const;
  /// Throws on all ranks if one of them could not read from its disk what a pass has used since the
  /// last call: it computed with NaN. Does nothing where all is in memory. Collective.
  void check_reads();

  /// Whether backward passes reduce gradients from now on. At first they do. Local.
  void set_synchronises(bool synchronises) { gradients_.set_synchronises(synchronises); }

  /// What is set for one shard or group.
  ShardedGradients& gradients() { return gradients_; }

  // ---- Groups, numbered in the Residency's order. Ranks set them alike. Local.

  /// The groups of the unit of the module of that path; with `inner` all that have parameters of
  /// the module.
  std::vector<int> groups_of(const std::string& unit, bool inner) const;
  /// See ShardingGroup. From the group's next use on.
  void set_reshard_after_forward(int group, bool reshards);
  void set_reshard_after_backward(int group, bool reshards);

  /// Before a step's forward pass: drops what a backward pass left that an exception ended, and the
  /// gradients of shards whose parameters' the module's zero_grad has reset, and finds hooks that
  /// parameters were given. Local.
  void begin_step() { gradients_.begin_step(); }

 private:
  struct PlannedGroup;

  std::vector<PlannedGroup> planned_groups(const torch::nn::Module& module) const;
  void choose_places(std::vector<PlannedGroup>& planned) const;
  at::ScalarType kept_dtype(const at::Tensor& parameter) const;
  void make_empty_parts(std::vector<PlannedGroup>& planned, internal::InitialParts& parts) const;
  void add_group(PlannedGroup planned, internal::InitialParts& initial);
  Retention retention_of(const ShardingGroup& group) const;
  std::vector<at::Tensor> whole_memory(std::vector<at::Tensor>& padded,
                                       const std::vector<at::ScalarType>& dtypes) const;
  void choose_disk(std::vector<PlannedGroup>& planned) const;
  std::vector<at::Tensor> kept_rows(const PlannedGroup& planned,
                                    const std::vector<at::Tensor>& padded,
                                    const std::vector<at::Tensor>& whole);

  // By shard: the group that gathers it, and its place there.
  using Gathered =
      std::unordered_map<const at::TensorImpl*, std::pair<internal::GatheredGroup*, size_t>>;

  const ShardGroups groups_;
  const c10::Device device_;
  const ShardingOptions options_;
  const std::shared_ptr<StepComparison> comparison_;  // null where ranks need not compare
  const std::shared_ptr<Residency> residency_;
  const std::shared_ptr<internal::SideStream> copies_stream_;  // null without offload
  ShardedGradients gradients_;
  std::vector<ShardingGroup> group_infos_;
  std::shared_ptr<internal::ShardDisks> disks_;  // null: all is in memory
  const std::shared_ptr<Gathered> gathered_ = std::make_shared<Gathered>();
};

}  // namespace accelerate
