/// What a model's layout asks for around its passes, where the module has parts of the model's
/// tensors: sums of partial gradients at the end of backward passes, behind the reductions of other
/// techniques (GradientSums), and comparison of what ranks have alike: of values when the model is
/// prepared, and of gradients after each pass that synchronises them. Checkpoints have what ranks
/// have summed in an accumulation window.
///
/// Collective: where ranks sum, or compare by gathering; see GradientSums and check_equal_along.
/// Errors:  those of check_equal_along, from the constructor and from backward passes.
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "accelerate/forward/technique.h"
#include "accelerate/parallel/equal_along.h"
#include "accelerate/parallel/gradient_sums.h"
#include "accelerate/plan/plan.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

class LayoutTechnique final : public Technique {
 public:
  /// What the ranks along an axis have alike.
  struct Equal {
    RanksAlong along;
    std::vector<TrainedParameter> parameters;
  };
  struct Options {
    /// As for check_equal_along.
    bool gathers = false;
    /// Whether no other technique of the model reduces gradients, and this one says which passes
    /// synchronise.
    bool is_alone = false;
  };
  LayoutTechnique(const std::vector<GradientSums::Owed>& owed, std::vector<Equal> equal,
                  const Options& options);

  static constexpr std::string_view kName = "layout";
  std::string_view name() const override { return kName; }
  void forward(ForwardPass& pass) override;
  NoSyncCount no_sync_count() const override { return no_sync_count_; }
  void trigger_sync_in_backward() override;
  void begin_adding(at::TensorList reduced) override;
  void end_adding() override;

  /// What ranks have summed of gradients, by name. It is loaded after the gradients themselves.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state, bool same_ranks) override;

 private:
  class BackwardEnd;

  const bool is_alone_;
  const std::shared_ptr<BackwardEnd> end_;
  const NoSyncCount no_sync_count_ = std::make_shared<int>(0);
};

/// For models that are trained and of which the module has parts. To be made after the techniques
/// that train something in place of parameters.
std::unique_ptr<Technique> make_layout_technique(const TechniqueContext& context);

}  // namespace accelerate
