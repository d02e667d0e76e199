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

void TensorParallelTechnique::forward(ForwardPass& pass) {
  handler_->mark_parameters();
  {
    const OperatorModeScope layers(handler_), draws(streams_);
    pass.proceed();
  }
  std::vector<at::Tensor> outputs = pass.outputs();
  const auto is_cut = [](const at::Tensor& output) {
    const TensorMark* const part = output.defined() ? find_part(output) : nullptr;
    return part != nullptr && part->kind == TensorMark::Kind::kFeatures;
  };
  if (std::ranges::none_of(outputs, is_cut)) return;
  for (at::Tensor& output : outputs) {
    if (is_cut(output)) output = handler_->cut_output_of(output);
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
                                             .parts = plan.mesh.size(MeshAxis::kTp) / copies}));
  }
  const ProcessGroupPtr& group = plan.device_mesh->group(MeshAxis::kTp);
  return std::make_unique<TensorParallelTechnique>(
      std::make_shared<TensorHandler>(group, plan.rank, std::move(parameters),
                                      rules->keep_gathered_inputs),
      RandomStreams::along(group, &is_part_along_tp), rules->parallel_loss);
}

}  // namespace accelerate
