/// Units of sharding that a program chooses by itself, as PyTorch's FSDP 2 has it: modules one by
/// one, those inside first, and the model last.
///
///     for (auto& block : *net->blocks) fully_shard(block);
///     FSDPModule root = fully_shard(net);
///     auto [model, optimizer] = accelerator.prepare(net, adam);
///     root.set_requires_gradient_sync(false);
///
/// C++ modules have no hooks, so what runs is the PreparedModel that `prepare` returns: it divides
/// the model, and takes the modules that fully_shard was called with for its units, in place of an
/// auto_wrap_policy's. Parameters of no unit are the model's own, as one group. Precision, offload
/// and the ranks are the Accelerator's. A model that `prepare` does not divide, as on one rank, has
/// no groups; what is set for its units has no effect.
///
/// What an FSDPModule sets holds until it is set again; before `prepare` it is remembered. All
/// ranks set the same. `recurse`: also for the units inside.
/// Threads: the rank's thread.
/// Mirrors: torch.distributed.fsdp, fully_shard and FSDPModule.
/// Differs: `prepare` divides the model, not the call; mesh, mp_policy and offload_policy are the
///          Accelerator's, and shard_placement_fn and custom collectives are left out.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/base/libtorch_fwd.h"

namespace accelerate {

class ShardedParameters;
struct ShardUnit;

namespace internal {
struct MarkedUnit;
}  // namespace internal

struct FullyShardOptions {
  /// Whether parameters are freed after the forward pass and gathered again in the backward pass.
  /// Absent: they are, but for those of the model itself.
  std::optional<bool> reshard_after_forward = std::nullopt;
  /// Parameters of the module that stay whole on each rank, and are neither divided nor reduced.
  std::vector<at::Tensor> ignored_params = {};
};

/// A module that fully_shard was called with. A handle: copies are the same unit.
class FSDPModule {
 public:
  /// Whether backward passes reduce gradients; where they do not, whole ones add up on their rank,
  /// until a pass reduces them. Local.
  void set_requires_gradient_sync(bool requires_gradient_sync, bool recurse = true) const;
  /// With replicas: whether backward passes add up gradients over them as well. Where they do not,
  /// each rank keeps the sum over its replica, in no gradient yet, until a pass does. Local.
  void set_requires_all_reduce(bool requires_all_reduce, bool recurse = true) const;
  /// Whether the unit's parameters are freed after the forward pass, and gathered again in the
  /// backward pass. Local.
  void set_reshard_after_forward(bool reshard_after_forward, bool recurse = true) const;
  /// Whether they are freed after the backward pass; where they are not, they stay until their
  /// shards change, as by an optimizer's step, so that the micro-steps of a window gather them
  /// once. Local.
  void set_reshard_after_backward(bool reshard_after_backward, bool recurse = true) const;
  /// Which units' parameters begin to be gathered, in this order, when those of this unit are used,
  /// in place of the next ones'. So many more are in memory. Local.
  void set_modules_to_forward_prefetch(const std::vector<FSDPModule>& modules) const;
  void set_modules_to_backward_prefetch(const std::vector<FSDPModule>& modules) const;
  /// What sums of gradients are divided by; at first the number of ranks that train. Local.
  /// Errors: c10::ValueError for a factor that is not above 0.
  void set_gradient_divide_factor(double factor) const;

  /// Gathers the unit's own parameters, so that operators outside of passes may read them too. They
  /// stay in memory until reshard(), or until a pass has used them. Collective.
  /// Errors: c10::ValueError inside of a pass.
  void unshard() const;
  /// Frees them. Local.
  void reshard() const;

 private:
  friend FSDPModule fully_shard(const std::shared_ptr<torch::nn::Module>& module,
                                FullyShardOptions options);
  explicit FSDPModule(std::shared_ptr<internal::MarkedUnit> unit) : unit_(std::move(unit)) {}

  void set_ahead(const std::vector<FSDPModule>& modules, bool in_backward) const;
  // Now, or once the unit has parameters.
  void set(std::function<void(ShardedParameters& parameters, int group)> setting,
           bool recurse) const;

  std::shared_ptr<internal::MarkedUnit> unit_;
};

/// Makes the module a unit of the model that it is, or will be, a part of. Called again before
/// `prepare` it takes the new options. Local.
/// Errors: c10::ValueError for a module of a model that is divided already, and an ignored
///         parameter that is not the module's.
FSDPModule fully_shard(const std::shared_ptr<torch::nn::Module>& module,
                       FullyShardOptions options = {});
template <typename Contained>
FSDPModule fully_shard(const torch::nn::ModuleHolder<Contained>& module,
                       FullyShardOptions options = {}) {
  return fully_shard(std::static_pointer_cast<torch::nn::Module>(module.ptr()), std::move(options));
}

namespace internal {

/// The units of the model, if fully_shard was called with a module of it; the last one is that of
/// the model itself. Adds their ignored parameters to `ignored`, which are in no unit.
std::optional<std::vector<ShardUnit>> marked_units(const torch::nn::Module& model,
                                                   std::vector<std::string>& ignored);
/// From now on the units of the model set its groups.
void bind_marked_units(const torch::nn::Module& model,
                       const std::shared_ptr<ShardedParameters>& parameters);

}  // namespace internal
}  // namespace accelerate
