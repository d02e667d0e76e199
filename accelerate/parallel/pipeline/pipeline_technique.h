/// Models of which the ranks along pp have stages (config/pipeline_plan.h).
///
/// The plan and the model's parts give its layout, and parameters of other stages are dropped. A
/// rank cannot make a forward pass of such a model by itself: windows of micro-batches run its
/// stages (parallel/pipeline/window.h). What several stages have, as a table of words that is tied
/// to the head, begins with equal values, and ranks add up its gradients when a window ends: not in
/// a backward pass, for which a rank before may still wait.
///
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/comm/process_group.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/forward/technique.h"
#include "accelerate/parallel/equal_along.h"
#include "accelerate/parallel/gradient_sums.h"
#include "accelerate/parallel/pipeline/late_gradients.h"
#include "accelerate/parallel/pipeline/model_stages.h"
#include "accelerate/parallel/pipeline/stage_messages.h"
#include "accelerate/pipeline/schedule.h"
#include "accelerate/tensors/state_dict.h"

namespace accelerate {

struct TechniqueContext;

class PipelineTechnique final : public Technique {
 public:
  /// `group`: all ranks along pp. `tied`: trained copies of what several stages have. `gathers`: as
  /// for check_equal_along. Ranks with copies take over the first one's values. Collective over
  /// each group of `tied`.
  PipelineTechnique(ModelStages stages, pipeline::ScheduleKind schedule, ProcessGroupPtr group,
                    std::unique_ptr<StageChannels> channels, std::vector<EqualAlong> tied,
                    bool gathers);

  static constexpr std::string_view kName = "pipeline";
  std::string_view name() const override { return kName; }
  /// Errors: c10::ValueError outside of forward_stage.
  void forward(ForwardPass& pass) override;

  /// What ranks have summed of gradients of copies, by name. It is loaded after the gradients
  /// themselves.
  StateDict state_dict() const override { return {.tensors = sums_.summed()}; }
  void load_state_dict(const StateDict& state, bool same_ranks) override {
    sums_.set_summed(same_ranks ? state.tensors : NamedTensors());
  }

  const ModelStages& stages() const { return stages_; }
  /// The schedule of windows that do not name another one.
  pipeline::ScheduleKind schedule() const { return schedule_; }
  const ProcessGroupPtr& group() const { return group_; }
  /// This rank's number along pp.
  int rank() const { return channels_->rank(); }
  StageChannels& channels() { return *channels_; }

  /// The forward pass of one of the rank's stages, inside all of the model's techniques.
  /// `positions`: as forward_parts takes them. `late`: what is to compute gradients of weights;
  /// null: the backward pass.
  at::Tensor forward_stage(const ModelState& model, int stage, at::Tensor x,
                           const at::Tensor& positions, std::shared_ptr<LateGradients> late);

  /// Around the backward passes of a window. Where gradients are synchronised, ranks add up those
  /// of copies, and compare them. end_window is collective then.
  /// Errors: those of check_equal_along.
  void begin_window() { sums_.begin(); }
  void end_window(bool synchronises);

 private:
  const ModelStages stages_;
  const pipeline::ScheduleKind schedule_;
  const ProcessGroupPtr group_;
  const std::unique_ptr<StageChannels> channels_;
  const std::vector<EqualAlong> tied_;
  GradientSums sums_;
  const bool gathers_;
  bool runs_stage_ = false;
};

/// Null where pp has one rank. To be made after the techniques that train something in place of
/// parameters. Collective over the ranks along pp.
/// A model with statistics of batches, as of BatchNorm, is worth a warning.
std::unique_ptr<Technique> make_pipeline_technique(const TechniqueContext& context);

}  // namespace accelerate
