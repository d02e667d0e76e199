#include "accelerate/parallel/apply.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/modules/value_at_use.h"
#include "accelerate/parallel/replicate.h"
#include "accelerate/runtime/memory_names.h"

namespace accelerate {
namespace {

int depth_of(TechniqueList list, std::string_view name) {
  const auto row = std::ranges::find(list, name, &TechniqueRow::name);
  TORCH_INTERNAL_ASSERT(row != list.end(), "no row has the technique ", name);
  return row->depth;
}

// How many of the techniques, the outermost first, surround one of that depth.
size_t outer(TechniqueList list, const Techniques& techniques, int depth) {
  const auto inner = std::ranges::find_if(
      techniques, [&](const auto& technique) { return depth_of(list, technique->name()) > depth; });
  return static_cast<size_t>(inner - techniques.begin());
}

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

void move_prepared_model(TechniqueList list, const TechniqueContext& context) {
  bool moved = false;
  // All are asked: a part of a model that is divided may be dispatched.
  for (const TechniqueRow& row : list) {
    if (row.moves != nullptr && row.moves(context)) moved = true;
  }
  if (!moved) move_module(*context.model.module(), context.plan.device);
}

void apply_techniques(TechniqueList list, ModelState& model, const ModelPlan& plan,
                      const ApplyOptions& options) {
  const torch::nn::Module& module = *model.module();
  const bool begins_to_train = options.trains && !model.is_trained;
  const bool replicated = begins_to_train && has_replicas(module, plan);
  Techniques techniques;
  const TechniqueContext context{.model = model,
                                 .plan = plan,
                                 .trains = options.trains,
                                 .group = replicated ? plan.group : nullptr,
                                 .made = techniques};
  for (const TechniqueRow& row : list) {
    if (row.check != nullptr) row.check(context);
  }
  if (!begins_to_train && !model.techniques().empty()) return;
  if (options.moves) move_prepared_model(list, context);
  // On TPUs ranks start from the same weights, and optimizers average gradients.
  if (begins_to_train && plan.group != nullptr && plan.distributed_type == DistributedType::kXla) {
    replicate(plan.group, module);
  }
  // DDP makes replicas equal within its group, which has one rank of each share; shards are cut
  // from the weights of the whole job's rank 0.
  if (replicated && plan.whole_job != nullptr && plan.shards == nullptr) {
    replicate(plan.whole_job, module);
  }
  for (const TechniqueRow& row : list) {
    auto technique = row.make != nullptr ? row.make(context) : nullptr;
    if (technique == nullptr) continue;
    const auto at = static_cast<std::ptrdiff_t>(outer(list, techniques, row.depth));
    techniques.insert(techniques.begin() + at, std::move(technique));
  }
  model.set_techniques(std::move(techniques));
  name_tensors(model);
  // Not before, so that a model which a technique refuses can be prepared again.
  model.is_trained |= options.trains;
}

void add_technique(TechniqueList list, ModelState& model, std::unique_ptr<Technique> technique) {
  const int depth = depth_of(list, technique->name());
  model.insert_technique(outer(list, model.techniques(), depth), std::move(technique));
}

bool is_technique(TechniqueList list, std::string_view name) {
  return std::ranges::count(list, name, &TechniqueRow::name) > 0;
}

void check_technique_options(TechniqueList list, const KwargsHandlers& handlers,
                             PrecisionType precision) {
  for (const TechniqueRow& row : list) {
    if (row.check_options != nullptr) row.check_options(handlers, precision);
  }
}

}  // namespace accelerate
