#include "accelerate/parallel/apply.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/base/mesh_axis.h"
#include "accelerate/comm/agree.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/modules/value_at_use.h"
#include "accelerate/operators/construction_record.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/layout/placement.h"
#include "accelerate/parallel/replicate.h"
#include "accelerate/runtime/shared_objects.h"

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

// A frozen model has nothing to reduce. On CPUs, as in HF Accelerate, its buffers still follow
// rank 0.
bool has_replicas(const torch::nn::Module& module, const ModelPlan& plan) {
  return plan.distributed_type != DistributedType::kXla &&
         (plan.distributed_type == DistributedType::kMultiCpu ||
          std::ranges::any_of(module.parameters(), &at::Tensor::requires_grad));
}

// The tensors whose rows techniques divide. A rank divides those of its stages alone, and knows
// those of other stages from their ranks. Collective over the ranks along pp.
std::vector<std::string> divided_by_rows(const ModelState& model, const ModelPlan& plan) {
  std::vector<std::string> own;
  for (const TrainedParameter& each : model.trained()) {
    if (each.shards != nullptr && each.shards == plan.roles.shards) own.push_back(each.name);
  }
  const bool has_stages = plan.layout != nullptr && plan.layout->cuts().contains(MeshAxis::kPp);
  if (!has_stages || plan.device_mesh == nullptr) return own;
  std::vector<std::string> all;
  for (const std::vector<std::string>& names : internal::agree_on_values(
           plan.device_mesh->group(MeshAxis::kPp), "prepare", [&own] { return own; })) {
    all.insert(all.end(), names.begin(), names.end());
  }
  return all;
}

// The placements of the module's tensors as the plan has them, with rows as techniques divide them.
ModelPlacements placements_of(const ModelState& model, const ModelPlan& plan) {
  const std::vector<std::string> divided = divided_by_rows(model, plan);
  const ModelLayout layout =
      plan.layout != nullptr ? *plan.layout : whole_layout(*model.module(), plan.mesh);
  ModelPlacements placements{.layout = std::make_shared<const ModelLayout>(
                                 layout.with_rows(divided, plan.roles.shard_axes)),
                             .cuts = plan.layout,
                             .is_cut = plan.layout != nullptr && !plan.layout->cuts().empty(),
                             .rank = plan.rank,
                             .roles = std::make_shared<const RankRoles>(plan.roles),
                             .shards = plan.roles.shards,
                             .norm = plan.roles.norm};
  for (const TensorPlacement& each : placements.layout->placements()) {
    const bool counts = is_first_copy(each, plan.mesh, plan.rank, plan.roles.norm_axes);
    placements.by_name.emplace(
        each.name, ModelPlacements::Entry{.placement = &each,
                                          .counts = counts,
                                          // On ranks of other stages nothing is left.
                                          .is_cut = !each.cuts.empty() &&
                                                    part_number(each, plan.mesh, plan.rank) >= 0});
  }
  return placements;
}

// Calls fn(name, parameter, placement) for each of the module's parameters that the layout has.
template <typename Fn>
void for_each_placed(const torch::nn::Module& module, const ModelLayout& layout, Fn&& fn) {
  for (const auto& item : module.named_parameters()) {
    const TensorPlacement* placement = layout.find(item.key());
    if (placement != nullptr && item.value().defined()) fn(item.key(), item.value(), *placement);
  }
}

// To tensors of an empty model, those of their construction or of a file, of which the host does
// not have all: on the device; absent: where the construction would have put them.
void give_values(const torch::nn::Module& module, std::optional<c10::Device> device) {
  std::vector<at::Tensor> waiting = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) waiting.push_back(buffer);
  std::erase_if(waiting,
                [](const at::Tensor& each) { return !each.defined() || !is_recorded(each); });
  if (waiting.empty()) return;
  const std::function<void()> end = end_of_construction(waiting);
  replay_construction(waiting, device);
  end();
}

// Before anything of the model is made; one that was prepared is cut. Sharding, which divides parts
// further, gives them values when it is made.
void cut_model(TechniqueList list, const TechniqueContext& context, bool moves) {
  const ModelPlan& plan = context.plan;
  if (plan.layout == nullptr || context.model.placements().layout != nullptr) return;
  for (const TechniqueRow& row : list) {
    if (row.cut != nullptr) row.cut(context);
  }
  for_each_placed(
      *context.model.module(), *plan.layout,
      [&plan](const std::string& name, const at::Tensor& parameter,
              const TensorPlacement& placement) {
        const std::vector<int64_t> part = cut_shape(placement, plan.layout->mesh(), plan.rank);
        TORCH_INTERNAL_ASSERT(parameter.sizes().equals(part), "rank ", plan.rank, " has ",
                              parameter.sizes(), " of \"", name,
                              "\", of which its layout gives it ", at::IntArrayRef(part));
      });
  if (is_sharded(context)) return;
  give_values(*context.model.module(), moves ? std::optional(plan.device) : std::nullopt);
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

std::shared_ptr<const ModelLayout> layout_of(TechniqueList list, const ModelState& model,
                                             const Mesh& mesh, const KwargsHandlers& handlers) {
  if (model.placements().layout != nullptr) return model.placements().cuts;
  std::shared_ptr<const ModelLayout> layout;
  for (const TechniqueRow& row : list) {
    if (row.layout == nullptr) continue;
    const LayoutContext context{
        .model = model, .mesh = mesh, .layout = layout.get(), .handlers = handlers};
    if (auto cut = row.layout(context)) layout = std::move(cut);
  }
  if (layout == nullptr) return nullptr;
  for_each_placed(
      *model.module(), *layout,
      [](const std::string& name, const at::Tensor& parameter, const TensorPlacement& placement) {
        TORCH_CHECK_VALUE(parameter.sizes().equals(placement.shape), "prepare: parameter \"", name,
                          "\" is ", parameter.sizes(), ", but the layout of the whole model has ",
                          at::IntArrayRef(placement.shape),
                          "; a module that was cut before cannot be cut again");
      });
  return layout;
}

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
                                 .group = replicated ? plan.roles.tokens.group : nullptr,
                                 .makes_shards = replicated && plan.makes_shards,
                                 .made = techniques};
  for (const TechniqueRow& row : list) {
    if (row.check != nullptr) row.check(context);
  }
  if (!begins_to_train && !model.techniques().empty()) return;
  cut_model(list, context, options.moves);
  if (options.moves) move_prepared_model(list, context);
  // On TPUs ranks start from the same weights, and optimizers average gradients.
  const ProcessGroupPtr& shares = plan.roles.tokens.group;
  if (begins_to_train && shares != nullptr && plan.distributed_type == DistributedType::kXla) {
    replicate(shares, module);
  }
  // DDP makes replicas equal within its group, which has one rank of each share, and some ranks may
  // train the same share alike; shards are cut from the weights of the first rank of the same part.
  if (replicated && plan.roles.same_part != shares && !context.makes_shards) {
    replicate(plan.roles.same_part, module);
  }
  for (const TechniqueRow& row : list) {
    auto technique = row.make != nullptr ? row.make(context) : nullptr;
    if (technique == nullptr) continue;
    const auto at = static_cast<std::ptrdiff_t>(outer(list, techniques, row.depth));
    techniques.insert(techniques.begin() + at, std::move(technique));
  }
  model.set_techniques(std::move(techniques));
  model.set_placements(placements_of(model, plan));
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
