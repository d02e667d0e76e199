#include "accelerate/precision/techniques.h"

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/forward/model_state.h"
#include "accelerate/plan/plan.h"
#include "accelerate/precision/fp8_model.h"
#include "accelerate/precision/job_precision.h"
#include "accelerate/tensors/tree_operations.h"

namespace accelerate {

namespace {

// The ranks that agree on scales: those that train the model together, which are also those with
// other parts of its layers where it is cut. Null for one rank, and where each has its own.
ProcessGroupPtr scale_group(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  if (plan.layout == nullptr) return context.group;
  const bool trains_together =
      plan.roles.tokens.group != nullptr ? context.group != nullptr : context.trains;
  return trains_together ? plan.roles.scales : nullptr;
}

}  // namespace

std::unique_ptr<Technique> make_autocast_technique(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  if (is_sharded(context) && !plan.autocasts_shards) return nullptr;
  const auto settings =
      autocast_settings(plan.precision.type(), plan.device.type(), plan.handlers.autocast);
  return settings ? std::make_unique<AutocastTechnique>(*settings) : nullptr;
}

std::unique_ptr<Technique> make_fp8_technique(const TechniqueContext& context) {
  const auto* earlier = context.model.find_technique<Fp8Technique>();
  std::shared_ptr<Fp8Model> fp8 = earlier != nullptr ? earlier->model() : nullptr;
  const std::optional<Fp8Plan>& plan = context.plan.precision.fp8();
  const ProcessGroupPtr group = scale_group(context);
  if (plan && (group != nullptr || is_sharded(context) || fp8 == nullptr)) {
    fp8 = Fp8Model::convert(*context.model.module(), *plan, group);
  }
  if (fp8 != nullptr && is_sharded(context)) fp8->set_sharded();
  return fp8 != nullptr ? std::make_unique<Fp8Technique>(std::move(fp8)) : nullptr;
}

void AutocastTechnique::forward(ForwardPass& pass) {
  {
    const AutocastScope scope(settings_);
    pass.proceed();
  }
  pass.set_outputs(convert_to_fp32(pass.outputs()));
}

void Fp8Technique::forward(ForwardPass& pass) {
  const Fp8Model::Scope scope = model_->forward_scope(pass.synchronises());
  pass.proceed();
}

StateDict Fp8Technique::state_dict() const {
  StateDict state;
  for (auto& [name, tensor] : model_->state_dict()) state.tensors.emplace_back(name, tensor);
  return state;
}

void Fp8Technique::load_state_dict(const StateDict& state, bool /*same_ranks*/) {
  if (state.tensors.empty()) return;
  for (const auto& [name, tensor] : state.tensors) {
    TORCH_CHECK_VALUE(tensor.defined(), "the state of a model in fp8 has no tensor \"", name, "\"");
  }
  model_->load_state_dict({state.tensors.begin(), state.tensors.end()});
}

const Fp8Report* Fp8Technique::fp8_report() const { return &model_->report(); }

}  // namespace accelerate
