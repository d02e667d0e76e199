/// Which stage of a pipeline has which parts of a model, and which rank has the stage.
///
/// Local. Threads: the rank's thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/config/model_parts.h"
#include "accelerate/config/pipeline_plan.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/pipeline/partition.h"

namespace accelerate {

struct LayoutContext;
struct TechniqueContext;

/// The value of what accelerate/pipeline returns, which throws nothing, for code that throws.
/// Errors: c10::ValueError with the status' text.
inline void check_pipeline_status(const absl::Status& status) {
  TORCH_CHECK_VALUE(status.ok(), "pipeline: ", std::string(status.message()));
}
template <typename T>
T checked_value(absl::StatusOr<T> result) {
  check_pipeline_status(result.status());
  return *std::move(result);
}

struct ModelStages {
  /// The whole model's.
  std::vector<ModelPart> parts;
  /// The place of each stage's first part among them.
  pipeline::StageCuts cuts;
  /// By stage: its rank's number along pp.
  std::vector<int> ranks;

  int count() const { return static_cast<int>(cuts.size()); }
  size_t begin(int stage) const { return cuts[static_cast<size_t>(stage)]; }
  size_t end(int stage) const { return stage + 1 < count() ? begin(stage + 1) : parts.size(); }
  /// The stages of the rank with this number, with their parts: "stage 1: blocks.1 to head".
  std::string text(int rank) const;
};

/// The parts of a model that says them (ModelParts) or is a Sequential; empty for another one.
std::vector<ModelPart> parts_of(const torch::nn::Module& module);

/// The model's forward pass from one part to another: [begin, end). `positions`: see
/// ModelParts::forward_parts_at; undefined: the rank has whole sequences.
/// \pre The model has parts.
/// Errors: c10::ValueError for positions that the model does not take.
at::Tensor forward_parts(torch::nn::Module& module, size_t begin, size_t end, at::Tensor x,
                         const at::Tensor& positions = {});

/// A model with parts, of which so many ranks have stages. `layout` has the whole model's shapes.
/// Errors: c10::ValueError for more stages than parts, split points that are not parts, out of
///         order or not as many as there are stages, weights that are not one a part, a number of
///         stages a rank that the schedule does not have, and a parameter or module that no part
///         uses or that there is not.
ModelStages stages_of(const torch::nn::Module& module, const ModelLayout& layout,
                      const PipelinePlan& plan, int ranks);

/// The parameters that the parts of a stage use.
std::vector<at::Tensor> parameters_of_stage(const torch::nn::Module& module,
                                            const ModelStages& stages, int stage);

/// The layout of a model whose parameters are in stages. Null where pp has one rank, and for a
/// model without parts.
/// Errors: those of stages_of.
std::shared_ptr<const ModelLayout> pipeline_layout(const LayoutContext& context);

/// Errors: c10::ValueError, where pp has several ranks, for a model without parts, for replicas
/// with
///         a static graph, and with ZeRO for a rank whose stages train nothing.
void check_pipeline(const TechniqueContext& context);

/// Leaves the parameters of other stages without rows, where nothing trains them. They remain the
/// same tensors.
void drop_other_stages(const TechniqueContext& context);

}  // namespace accelerate
