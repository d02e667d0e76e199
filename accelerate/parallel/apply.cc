#include "accelerate/parallel/apply.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "accelerate/parallel/communication_hook.h"
#include "accelerate/parallel/ddp.h"
#include "accelerate/parallel/fp8_gradients.h"
#include "accelerate/parallel/precision_stages.h"
#include "accelerate/parallel/replicate.h"
#include "accelerate/precision/fp8_model.h"

namespace accelerate {
namespace {

bool has_trainable_parameters(const torch::nn::Module& module) {
  const std::vector<at::Tensor> parameters = module.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
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

}  // namespace accelerate
