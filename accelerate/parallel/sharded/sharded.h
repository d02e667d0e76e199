/// Sharded data-parallel training of one model: the parameters, their gradients and the state of
/// optimizers are divided among ranks, which gather a group of parameters just before it is used.
/// See residency/shards.h.
///
/// Optimizers train the shards: prepare gives them these in place of the parameters. Gradients are
/// therefore those of the shards; prepared optimizers and the module's zero_grad reset them.
/// Buffers are whole on every rank and follow rank 0 as in replicated models.
/// Collective: the constructor (which compares the ranks' models and takes rank 0's values), each
///             forward pass and each backward pass.
/// Errors:  c10::ValueError, on all ranks, naming the first parameter or buffer in which the ranks'
///          models differ; those of ShardedParameters.
/// Threads: the rank's thread.
/// Mirrors: torch.distributed.fsdp.fully_shard and FullyShardedDataParallel.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/base/access.h"
#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/forward/prepared_model.h"
#include "accelerate/forward/technique.h"
#include "accelerate/parallel/backward_hooks.h"
#include "accelerate/parallel/equal_along.h"
#include "accelerate/parallel/residency/residency.h"
#include "accelerate/parallel/residency/sharding_options.h"
#include "accelerate/parallel/residency/shards.h"

namespace accelerate {

struct TechniqueContext;

class ShardedModel final : public Technique {
 public:
  /// `groups.all` is null for one rank alone. Parameters and buffers are on `device` afterwards.
  ShardedModel(const torch::nn::Module& module, ShardGroups groups, c10::Device device,
               const ShardingOptions& options, const ShardedPrecision& precision,
               bool broadcast_buffers);

  static constexpr std::string_view kName = "sharded";
  std::string_view name() const override { return kName; }

  void forward(ForwardPass& pass) override;

  /// While the count is above 0, whole gradients add up on their rank. Local.
  NoSyncCount no_sync_count() const override {
    return reduces_each_pass_ ? nullptr : no_sync_count_;
  }
  void trigger_sync_in_backward() override { parameters_->set_synchronises(true); }
  const TrainedInPlace* trained() const override { return &trained_; }

  /// The sums of shards that wait for those of other replicas, by name.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state, bool same_ranks) override;

  void check_reads() override { parameters_->check_reads(); }

  const std::shared_ptr<ShardedParameters>& parameters() const { return parameters_; }
  const std::shared_ptr<Residency>& residency() const { return parameters_->residency(); }
  /// The ranks that train the model; null for one.
  const ProcessGroupPtr& job() const { return all_; }

  /// Before each forward pass that synchronises gradients, the shards in memory are compared with
  /// those of the ranks that have the same rows in other replicas. Local; `gathers`: see
  /// check_equal_along, whose errors such passes throw from now on.
  void compare_replicas(RanksAlong replicas, bool gathers);

 private:
  void check_replicas() const;

  const ProcessGroupPtr all_;
  const ShardedPrecision precision_;
  const bool reduces_each_pass_;
  const std::shared_ptr<ShardedParameters> parameters_;
  BufferRefresh refresh_;
  TrainedInPlace trained_;
  std::optional<RanksAlong> replicas_;  // with which shards are compared
  NamedTensors compared_;               // the shards
  bool gathers_ = false;
  const NoSyncCount no_sync_count_ = std::make_shared<int>(0);
};

/// For models whose parameters become shards; see is_sharded. Collective.
std::unique_ptr<Technique> make_sharded_technique(const TechniqueContext& context);
/// Whether a model can have this technique, if it is to have it. Local.
/// Errors: c10::ValueError for communication hooks, for MS-AMP where parameters are divided, and
///         those of check_trained_alike.
void check_sharded_technique(const TechniqueContext& context);

namespace internal {

// Local. Errors: c10::ValueError, which begins with `caller`, for a model of which ranks have parts
// that are more than rows, naming the first such parameter, or such of `only` where that is not
// null, the axes that cut it, and this rank. The same on all ranks.
void check_not_cut(const ModelState& model, const char* caller,
                   const std::vector<at::Tensor>* only = nullptr);

}  // namespace internal

struct GatheredParametersOptions {
  /// The rank of the job whose changes stay; absent: no changes stay.
  std::optional<int> modifier_rank = std::nullopt;
  bool enabled = true;
};

/// While it lives, these parameters of a model are whole and in memory on every rank, as in a
/// full_parameters scope. With a modifier_rank, code of that rank may change them, and all ranks
/// take over what it has at the scope's end. Collective.
///
/// Errors: those of WholeParameters; c10::ValueError naming one of the parameters, the axes and the
///         rank, if ranks have parts of it that are more than rows.
/// Mirrors: deepspeed.zero, GatheredParameters.
class GatheredParameters {
 public:
  template <typename Module>
  GatheredParameters(const PreparedModel<Module>& model, const std::vector<at::Tensor>& parameters,
                     GatheredParametersOptions options = {})
      : GatheredParameters(shards_of(*internal::Access::to(model), parameters, options), parameters,
                           options) {}
  /// `model` is null where each rank has all parameters.
  GatheredParameters(const ShardedModel* model, std::vector<at::Tensor> parameters,
                     GatheredParametersOptions options = {});
  ~GatheredParameters() noexcept(false);
  GatheredParameters(const GatheredParameters&) = delete;
  GatheredParameters& operator=(const GatheredParameters&) = delete;

 private:
  static const ShardedModel* shards_of(const ModelState& model,
                                       const std::vector<at::Tensor>& parameters,
                                       const GatheredParametersOptions& options);

  const std::vector<at::Tensor> parameters_;
  const std::optional<int> modifier_rank_;
  const ProcessGroupPtr all_;
  const int exceptions_;
  WholeParameters whole_;
};

using FullParametersOptions = WholeParametersOptions;

/// While the result lives, the model's parameters are whole and in memory on every rank, to be read
/// outside of passes: saved, compared, printed. With `writeback` code may change them as well
/// (without gradients), and each rank keeps its rows of what it has at the scope's end. It does
/// nothing for a model that is not sharded. The model may be used for passes inside, unless there
/// is `rank0_only` or `offload_to_cpu`. With writeback, optimizers refuse to step inside, because
/// the scope's end would undo it. Collective.
///
/// Errors: those of WholeParameters and ShardedParameters; c10::ValueError naming a parameter, the
///         axes and the rank, if ranks have parts of the model that are more than rows.
/// Mirrors: torch.distributed.fsdp, FullyShardedDataParallel.summon_full_params; deepspeed.zero,
///          GatheredParameters.
template <typename Module>
[[nodiscard]] WholeParameters full_parameters(const PreparedModel<Module>& model,
                                              const FullParametersOptions& options = {}) {
  internal::check_not_cut(*internal::Access::to(model), "full_parameters");
  const auto* sharded = find_technique<ShardedModel>(model);
  return WholeParameters(sharded ? sharded->residency() : nullptr, options);
}

}  // namespace accelerate
