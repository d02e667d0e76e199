#include "accelerate/parallel/apply.h"

#include <algorithm>
#include <memory>
#include <ranges>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "accelerate/parallel/activation_checkpointing.h"
#include "accelerate/parallel/ddp.h"
#include "accelerate/parallel/precision_techniques.h"
#include "accelerate/parallel/replicate.h"
#include "accelerate/parallel/sharded.h"
#include "accelerate/runtime/memory_names.h"

namespace accelerate {
namespace {

struct Row {
  std::string_view name;
  // Null for a model that does without it.
  std::unique_ptr<Technique> (*make)(const TechniqueContext& context);
};

// The outermost first.
constexpr Row kTechniques[] = {
    // Before a pass replication refreshes buffers, which computing must see; after the pass it must
    // see the outputs that the caller gets, in float32.
    {DistributedDataParallel::kName, &make_ddp_technique},
    // In place of replication.
    {ShardedModel::kName, &make_sharded_technique},
    // fp8 is inside automatic mixed precision, which casts the products that fp8 leaves alone.
    {AutocastTechnique::kName, &make_autocast_technique},
    {Fp8Technique::kName, &make_fp8_technique},
    {ActivationCheckpointingTechnique::kName, &make_activation_checkpointing_technique},
};

bool has_trainable_parameters(const torch::nn::Module& module) {
  return std::ranges::any_of(module.parameters(),
                             [](const at::Tensor& parameter) { return parameter.requires_grad(); });
}

// A frozen model has nothing to reduce. On CPUs, as in HF Accelerate, its buffers still follow
// rank 0.
bool has_replicas(const torch::nn::Module& module, const ModelPlan& plan) {
  return plan.distributed_type != DistributedType::kXla &&
         (has_trainable_parameters(module) || plan.distributed_type == DistributedType::kMultiCpu);
}

// For reports of what fills the memory.
void name_tensors(const ModelState& model) {
  for (const auto& item : model.module()->named_parameters()) {
    name_memory(item.value(), item.key());
  }
  for (const auto& item : model.module()->named_buffers()) name_memory(item.value(), item.key());
  // A rank's shards.
  for (const TrainedParameter& each : model.trained()) name_memory(each.trained, each.name);
}

}  // namespace

void apply_techniques(ModelState& model, const ModelPlan& plan, bool trains) {
  const torch::nn::Module& module = *model.module();
  const bool begins_to_train = trains && !model.is_trained;
  if (!begins_to_train && !model.techniques().empty()) return;
  // On TPUs ranks start from the same weights, and optimizers average gradients.
  if (begins_to_train && plan.group != nullptr && plan.distributed_type == DistributedType::kXla) {
    replicate(plan.group, module);
  }
  const bool replicated = begins_to_train && has_replicas(module, plan);
  // DDP makes replicas equal within its group, which has one rank of each share; shards are cut
  // from the weights of the whole job's rank 0.
  if (replicated && plan.whole_job != nullptr && plan.shards == nullptr) {
    replicate(plan.whole_job, module);
  }
  // The innermost is made first, because a technique may depend on those that it surrounds: with
  // MS-AMP the gradients of fp8 layers travel in fp8.
  Techniques techniques;
  for (const Row& row : std::views::reverse(kTechniques)) {
    auto technique = row.make({.model = model,
                               .plan = plan,
                               .group = replicated ? plan.group : nullptr,
                               .inside = techniques});
    if (technique != nullptr) techniques.insert(techniques.begin(), std::move(technique));
  }
  model.set_techniques(std::move(techniques));
  name_tensors(model);
  // Not before, so that a model which a technique refuses can be prepared again.
  model.is_trained |= trains;
}

bool is_technique(std::string_view name) {
  return std::ranges::count(kTechniques, name, &Row::name) > 0;
}

void check_technique_options(const KwargsHandlers& handlers, PrecisionType precision) {
  check_fp8_handlers(handlers.fp8, precision);
  check_ddp_options(handlers.ddp);
}

}  // namespace accelerate
