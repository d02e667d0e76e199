/// Models whose experts the ranks along ep divide: each MixtureOfExperts among the modules keeps
/// this rank's part of the experts, and of the inside of each where ranks along tp divide it.
///
/// Each rank's router sends its own tokens, so that the gradient of an expert is, after a backward
/// pass, the sum over the ranks along ep. It is divided by the number of token shares, as that of
/// every parameter, and summed over the ranks that have the same experts (TensorPlacement::sums).
/// Sharding leaves experts as they are, and divides all else among the ranks along dp_shard_cp_sp.
///
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/forward/technique.h"

namespace accelerate {

class ModelLayout;
struct LayoutContext;
struct TechniqueContext;

class ExpertParallelTechnique final : public Technique {
 public:
  /// The parameters of this rank's experts, and of how many token shares their gradients are means.
  ExpertParallelTechnique(const std::vector<at::Tensor>& parameters, int token_shares);
  ~ExpertParallelTechnique() override;

  static constexpr std::string_view kName = "expert_parallel";
  std::string_view name() const override { return kName; }
  /// Mixtures know the ranks by themselves, so that they do in passes that compute a block again.
  void forward(ForwardPass& pass) override { pass.proceed(); }

 private:
  std::vector<std::pair<at::Tensor, unsigned>> hooks_;
};

/// Cuts the experts of all mixtures along ep, and the inside of each along tp where the mixtures
/// say so (MixtureOptions::divides_along_tp). Null where nothing is cut. Errors: c10::ValueError
/// for a model without a mixture where ep has several ranks, for mixtures of
///         which some are divided along tp, and naming the mixture, the size and the nearest
///         ep_size or tp_size, for experts that the ranks do not divide evenly.
std::shared_ptr<const ModelLayout> expert_parallel_layout(const LayoutContext& context);

/// Errors: c10::ValueError naming a mixture whose router has losses, where ranks have stages of a
///         model that does not hand these over (ModelParts::take_router_loss).
void check_expert_parallel(const TechniqueContext& context);

/// Leaves the module this rank's experts, which remain the same tensors. Those of an empty model
/// get their values now. A rank's own values count for its experts, so all ranks begin with the
/// same ones, as with set_seed or a checkpoint that each reads. Local.
/// Errors: c10::ValueError naming a parameter on "meta" without values; those of the reads.
void cut_experts(const TechniqueContext& context);

/// Null for a model without experts on other ranks along ep, and for one that is not trained.
/// Collective over the ranks with the same experts, which get the values of their first one.
std::unique_ptr<Technique> make_expert_parallel_technique(const TechniqueContext& context);

}  // namespace accelerate
