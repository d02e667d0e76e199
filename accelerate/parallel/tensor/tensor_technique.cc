#include "accelerate/parallel/tensor/tensor_technique.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "accelerate/mesh/device_mesh.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/layout/placement.h"
#include "accelerate/parallel/tensor/plan_layout.h"
#include "accelerate/parallel/tensor/tensor_mark.h"
#include "accelerate/plan/plan.h"

namespace accelerate {
namespace {

// How many features the layers have that the plan would put together, but for its parallel loss;
// without any, all column layers.
std::vector<int64_t> vocabularies_of(const std::vector<PlannedParameter>& planned,
                                     const TensorParallelPlan& plan, const ModelLayout& layout) {
  std::vector<int64_t> of_gathered, of_columns;
  if (!plan.parallel_loss) return {};
  for (const PlannedParameter& each : planned) {
    // Ranks have parts of each block, and so not classes that follow each other.
    if (each.cut_dim() != 0 || each.tensor.dim() != 2 || each.rule.blocks.size() > 1) continue;
    const int64_t features = layout.find(each.name)->shape[0];
    of_columns.push_back(features);
    // The rule of the parameter itself puts nothing together.
    const auto rule = std::ranges::find(plan.rules, each.rule.pattern, &TensorRule::pattern);
    const bool gathers = rule != plan.rules.end() && rule->gather_output;
    if (gathers || each.rule.style == TensorStyle::kEmbedding) of_gathered.push_back(features);
  }
  return of_gathered.empty() ? of_columns : of_gathered;
}

}  // namespace

std::optional<int64_t> TensorParallelTechnique::vocabulary_of(int64_t classes) const {
  // Whole logits of such a layer are an error.
  for (const int64_t all : {classes * size_of(handler_->group()), classes}) {
    if (std::ranges::count(vocabularies_, all) > 0) return all;
  }
  return std::nullopt;
}

void TensorParallelTechnique::forward(ForwardPass& pass) {
  handler_->mark_parameters();
  {
    const OperatorModeScope layers(handler_), draws(streams_);
    pass.proceed();
  }
  std::vector<at::Tensor> outputs = pass.outputs();
  const auto part_of = [](const at::Tensor& output) {
    return output.defined() ? find_part(output) : nullptr;
  };
  if (std::ranges::none_of(outputs, part_of)) return;
  for (at::Tensor& output : outputs) {
    const TensorMark* const part = part_of(output);
    if (part == nullptr) continue;
    output = part->kind == TensorMark::Kind::kSequence ? handler_->whole_sequences_of(output)
                                                       : handler_->cut_output_of(output);
  }
  pass.set_outputs(std::move(outputs));
}

std::unique_ptr<Technique> make_tensor_parallel_technique(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  if (plan.layout == nullptr || plan.mesh.size(MeshAxis::kTp) == 1) return nullptr;
  const torch::nn::Module& module = *context.model.module();
  const std::optional<TensorParallelPlan> rules = find_plan(module, plan.handlers);
  if (!rules) return nullptr;
  const std::vector<PlannedParameter> planned = planned_parameters(module, *rules);
  const auto is_cut = [](const PlannedParameter& each) { return each.cut_dim().has_value(); };
  if (std::ranges::none_of(planned, is_cut)) return nullptr;
  TensorHandler::Parameters parameters;
  for (const PlannedParameter& each : planned) {
    const TensorPlacement& placement = *plan.layout->find(each.name);
    const auto cut = std::ranges::find(placement.cuts, MeshAxis::kTp, &Cut::axis);
    const int copies = cut != placement.cuts.end() ? cut->copies : 1;
    parameters.emplace_back(each.tensor, std::make_shared<const LayerParameter>(LayerParameter{
                                             .name = each.name,
                                             .rule = each.rule,
                                             .whole = placement.shape,
                                             .cut_dim = each.cut_dim(),
                                             .parts = plan.mesh.size(MeshAxis::kTp) / copies,
                                             .copies = copies}));
  }
  const ProcessGroupPtr& group = plan.device_mesh->group(MeshAxis::kTp);
  return std::make_unique<TensorParallelTechnique>(
      std::make_shared<TensorHandler>(group, plan.rank, std::move(parameters),
                                      rules->keep_gathered_inputs),
      RandomStreams::along(group, &copies_along_tp),
      vocabularies_of(planned, *rules, *plan.layout));
}

}  // namespace accelerate
