#include "accelerate/parallel/apply.h"

#include <algorithm>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/parallel/communication_hook.h"
#include "accelerate/parallel/ddp.h"
#include "accelerate/precision/fp8_model.h"
#include "accelerate/tensors/tree_operations.h"

namespace accelerate {
namespace {

bool has_trainable_parameters(const torch::nn::Module& module) {
  return std::ranges::any_of(module.parameters(),
                             [](const at::Tensor& parameter) { return parameter.requires_grad(); });
}

// A frozen model has nothing to reduce. On CPUs, as in HF Accelerate, its buffers still follow
// rank 0.
bool is_replicated(const torch::nn::Module& module, const ModelPlan& plan) {
  return plan.group != nullptr && plan.distributed_type != DistributedType::kXla &&
         (has_trainable_parameters(module) || plan.distributed_type == DistributedType::kMultiCpu);
}

std::unique_ptr<Stage> data_parallel(const ModelState& model, const ModelPlan& plan,
                                     const Fp8Model* fp8) {
  std::unique_ptr<CommunicationHook> hook = make_communication_hook(plan.ddp);
  if (fp8 != nullptr && plan.fp8->backend() == FP8BackendType::kMsamp) {
    if (hook == nullptr) hook = std::make_unique<MeanHook>();
    hook = std::make_unique<Fp8GradientHook>(fp8->weights(), std::move(hook));
  }
  return std::make_unique<DistributedDataParallel>(model.module(), plan.group, plan.ddp,
                                                   std::move(hook));
}

}  // namespace

void apply_stages(ModelState& model, const ModelPlan& plan, bool trains) {
  torch::nn::Module& module = *model.module();
  const bool begins_to_train = trains && !std::exchange(model.is_trained, true);
  if (!begins_to_train && !model.stages().empty()) return;
  // On TPUs ranks start from the same weights, and optimizers average gradients.
  if (begins_to_train && plan.group != nullptr && plan.distributed_type == DistributedType::kXla) {
    replicate(plan.group, module);
  }
  const bool replicated = begins_to_train && is_replicated(module, plan);

  // The fp8 layers are chosen first, because the gradients of their weights travel in fp8 with
  // MS-AMP. A model that was prepared for evaluation has fp8 layers, but shares no scales.
  const auto* earlier = model.find_stage<Fp8Stage>();
  std::shared_ptr<Fp8Model> fp8 = earlier ? earlier->model() : nullptr;
  if (plan.fp8 && (replicated || !fp8)) {
    fp8 = Fp8Model::convert(module, *plan.fp8, replicated ? plan.group : nullptr);
  }

  Stages stages;
  // Replication is outermost. Before a pass it refreshes buffers, which computing must see; after
  // the pass it must see the outputs that the caller gets, in float32.
  if (replicated) stages.push_back(data_parallel(model, plan, fp8.get()));
  // fp8 is inside automatic mixed precision, which casts the products that fp8 leaves alone.
  if (plan.autocast) stages.push_back(std::make_unique<AutocastStage>(*plan.autocast));
  if (fp8) stages.push_back(std::make_unique<Fp8Stage>(std::move(fp8)));
  model.set_stages(std::move(stages));
}

void AutocastStage::forward(ForwardPass& pass) {
  {
    const AutocastScope scope(settings_);
    pass.proceed();
  }
  pass.set_outputs(convert_to_fp32(pass.outputs()));
}

void Fp8Stage::forward(ForwardPass& pass) {
  const Fp8Model::Scope scope = model_->forward_scope(pass.synchronises());
  pass.proceed();
}

StateDict Fp8Stage::state_dict() const {
  StateDict state;
  for (auto& [name, tensor] : model_->state_dict()) state.tensors.emplace_back(name, tensor);
  return state;
}

void Fp8Stage::load_state_dict(const StateDict& state, bool /*same_ranks*/) {
  if (state.tensors.empty()) return;
  for (const auto& [name, tensor] : state.tensors) {
    TORCH_CHECK_VALUE(tensor.defined(), "the state of a model in fp8 has no tensor \"", name, "\"");
  }
  model_->load_state_dict({state.tensors.begin(), state.tensors.end()});
}

const Fp8Report* internal::fp8_report(const ModelState& model) {
  const auto* fp8 = model.find_stage<Fp8Stage>();
  return fp8 ? &fp8->model()->report() : nullptr;
}

}  // namespace accelerate
