/// The gradients of parameters that are divided among ranks: backward passes make whole ones, and
/// each rank gets the mean over ranks of its rows. For ShardedParameters, which has the rules for
/// ranks and users.
///
/// A backward pass reduces a group when all its gradients are there, and what is left when it ends;
/// parameters of a group of which others have gradients send zeros. One group at a time is on its
/// way to shards and, where there are replicas, one to these. While gradients are not synchronised,
/// whole ones add up in the parameters, in reduce_dtype; the next pass that synchronises reduces
/// them. While those of a group are not added up over replicas, a rank keeps the sums of its
/// replica, and the next pass that adds them up takes these with it.
///
/// Collective: the ends of backward passes, and what hooks do in them.
/// Errors:  those of ShardedParameters.
/// Threads: as Residency.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "accelerate/parallel/residency/residency.h"
#include "accelerate/parallel/residency/shard.h"
#include "accelerate/parallel/residency/sharding_options.h"
#include "accelerate/parallel/residency/side_stream.h"
#include "accelerate/parallel/residency/step_comparison.h"
#include "accelerate/parallel/residency/use_trace.h"

namespace accelerate {

class ShardedGradients {
 public:
  /// `options` outlive this. `comparison`: null where ranks need not compare what they do.
  /// `copies`: on which gradients are copied to the host; null where shards are on the device.
  ShardedGradients(ShardGroups groups, c10::Device device, const ShardingOptions& options,
                   std::shared_ptr<Residency> residency,
                   std::shared_ptr<const StepComparison> comparison,
                   std::shared_ptr<internal::SideStream> copies);
  ~ShardedGradients();

  /// The Residency's next group, and what its gradients are sent in, by shard.
  /// `gradients_differ`: see ShardingGroup. `on_host`: where they go, with offload.
  void add_group(const std::vector<ParameterShard>& shards,
                 const std::vector<at::ScalarType>& reduce_dtypes, bool gradients_differ = false,
                 bool on_host = false);
  /// Those of all groups, one after the other.
  const std::vector<ParameterShard>& shards() const { return shards_; }

  /// See ShardedParameters.
  void set_synchronises(bool synchronises) { synchronises_ = synchronises; }
  void begin_step();

  // ---- What ranks set alike. Local.

  /// Gives a shard a gradient that was reduced before, as when a checkpoint is loaded.
  void set_gradient(size_t shard, at::Tensor gradient);
  /// Whether backward passes reduce the group's gradients; where they do not, whole gradients add
  /// up.
  void set_reduces(size_t group, bool reduces) { reduced_together_.at(group).reduces = reduces; }
  /// Whether its gradients are added up over replicas as well; where they are not, sums over this
  /// replica's ranks add up, until a backward pass adds up those over replicas.
  void set_all_reduces(size_t group, bool all_reduces) {
    reduced_together_.at(group).all_reduces = all_reduces;
  }
  /// What sums of its gradients are divided by; absent: what the options say.
  void set_divide_factor(size_t group, std::optional<double> factor) {
    reduced_together_.at(group).divide_factor = factor;
  }
  /// The sums of a shard that wait for those of the other replicas; undefined: none.
  at::Tensor partial_sum(size_t shard) const { return partial_.at(shard); }
  void set_partial_sum(size_t shard, at::Tensor sum) { partial_.at(shard) = std::move(sum); }

 private:
  class GradientHook;
  struct Reduction;
  struct HostCopy;
  class DeferredNumber;

  // What a sum of gradients is divided by before and after they are added up.
  struct Division {
    double before = 1, after = 1;
  };

  struct Group {
    size_t begin = 0, end = 0;  // in shards_
    std::vector<bool> ready;    // whose gradients this backward pass has made
    std::string purpose;        // of its reductions
    std::string marks,
        marks_now;  // presence of gradients by parameter, at the last reduction and now
    bool gradients_differ = false;  // see ShardingGroup
    bool on_host = false;           // where they go
    bool reduces = true;            // whether backward passes reduce its gradients,
    bool all_reduces = true;        // and over replicas as well
    std::optional<double> divide_factor = std::nullopt;  // absent: that of the options
  };

  bool departed() const;
  void sync_with_module(size_t group);
  void make_place(size_t shard);
  void sync_zero_grad(size_t shard);
  void fill_gradients(const Group& group);
  void gradient_is_ready(size_t group, size_t shard);
  void store_whole_gradient(size_t shard);
  bool mark_gradients(size_t group);
  bool has_partial_sums(const Group& group) const;
  void record_reduction(size_t group);
  void compare_reduction(int group);
  void reduce(size_t group);
  at::Tensor extract_gradient(const Group& group, size_t shard, at::TensorOptions options);
  void advance_reductions();
  void store_partial_sums(const Reduction& reduction);
  void add_partial_sums(Reduction& reduction);
  Division division(const Group& group, at::ScalarType dtype) const;
  void add_to_gradients(const Reduction& reduction);
  void add_to_gradient(size_t shard, const at::Tensor& padded);
  void copy_to_host(std::vector<size_t> shards, std::vector<at::Tensor> means);
  void finish_copies(size_t count);
  bool some_rank_departed();
  void end_backward();

  const ShardGroups groups_;
  const c10::Device device_;
  const ShardingOptions& options_;
  // Hooks outlive this where code holds the parameters longer.
  const std::shared_ptr<ShardedGradients*> self_;
  const std::shared_ptr<Residency> residency_;
  const std::shared_ptr<const StepComparison> comparison_;
  std::vector<ParameterShard> shards_;
  std::vector<at::ScalarType> reduce_dtypes_;  // by shard
  // By shard: what the parameter has for a gradient once that was reduced. Undefined: not yet, or
  // not since zero_grad.
  std::vector<at::Tensor> reduced_;
  // By shard: the sum over its replica's ranks, padded, as it is sent, that has not gone to the
  // other replicas yet. Undefined: none.
  std::vector<at::Tensor> partial_;
  std::vector<bool> has_place_hook_;  // by shard: whether a gradient finds its place
  std::vector<Group> reduced_together_;
  UseTrace reductions_;
  // How many ranks had departed, by the reductions of this backward pass, and of the one before
  // where the host did not wait for it. Undefined: nothing was reduced.
  at::Tensor departed_;
  std::unique_ptr<DeferredNumber> earlier_departed_;
  std::unique_ptr<Reduction> scattering_;                      // on its way to the shards
  std::unique_ptr<Reduction> replicating_;                     // being added up over replicas
  const std::shared_ptr<internal::SideStream> copies_stream_;  // null without offload
  std::vector<HostCopy> copies_;  // of gradients, on their way to the host
  bool synchronises_ = true;
  std::optional<int> backward_;  // the backward pass at whose end gradients are reduced
};

}  // namespace accelerate
