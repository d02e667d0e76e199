#include "accelerate/parallel/pipeline/model_stages.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include "absl/strings/str_cat.h"
#include "accelerate/base/message_text.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/parallel/layout/placement.h"
#include "accelerate/pipeline/schedule.h"
#include "accelerate/plan/plan.h"
#include "accelerate/tensors/tensor_memory.h"
#include "accelerate/values/module_class.h"

namespace accelerate {
namespace {

std::vector<std::string> uses_of(const ModelPart& part) {
  return part.uses.empty() ? std::vector{part.name} : part.uses;
}

bool uses(const ModelPart& part, const std::string& parameter) {
  return std::ranges::any_of(uses_of(part), [&parameter](const std::string& used) {
    return parameter == used || parameter.starts_with(used + ".");
  });
}

// What parts may use.
std::vector<std::string> names_in(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    names.push_back(item.key());
  }
  for (const auto& item : module.named_parameters()) names.push_back(item.key());
  for (const auto& item : module.named_buffers()) names.push_back(item.key());
  return names;
}

// By part, the parameters that it uses.
std::vector<std::vector<std::string>> parameters_of(const torch::nn::Module& module,
                                                    const std::vector<ModelPart>& parts) {
  const std::vector<std::string> names = names_in(module);
  for (const ModelPart& part : parts) {
    for (const std::string& used : uses_of(part)) {
      TORCH_CHECK_VALUE(std::ranges::count(names, used) > 0, "pipeline: part \"", part.name,
                        "\" uses \"", used, "\", which the model does not have; ",
                        suggestion(used, names));
    }
  }
  std::vector<std::vector<std::string>> parameters(parts.size());
  for (const auto& item : module.named_parameters()) {
    bool is_used = false;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!uses(parts[i], item.key())) continue;
      parameters[i].push_back(item.key());
      is_used = true;
    }
    TORCH_CHECK_VALUE(is_used, "pipeline: no part of the model uses its parameter \"", item.key(),
                      "\"; let one of its parts name that or its module");
  }
  return parameters;
}

std::vector<int64_t> bytes_of(const std::vector<std::vector<std::string>>& parameters,
                              const ModelLayout& layout) {
  std::vector<int64_t> bytes;
  for (const std::vector<std::string>& names : parameters) {
    int64_t& sum = bytes.emplace_back(0);
    for (const std::string& name : names) {
      const TensorPlacement* const placement = layout.find(name);
      if (placement == nullptr) continue;
      sum += c10::multiply_integers(placement->shape) *
             static_cast<int64_t>(c10::elementSize(placement->dtype));
    }
  }
  return bytes;
}

std::vector<std::string> names_of(const std::vector<ModelPart>& parts) {
  std::vector<std::string> names;
  for (const ModelPart& part : parts) names.push_back(part.name);
  return names;
}

pipeline::StageCuts cuts_of(const std::vector<std::string>& names,
                            const std::vector<int64_t>& bytes, const PipelinePlan& plan,
                            int stages) {
  TORCH_CHECK_VALUE(plan.weights.empty() || plan.weights.size() == names.size(),
                    "pipeline: ", plan.weights.size(), " weights for a model of ", names.size(),
                    " parts");
  if (plan.split_points.empty() && plan.weights.empty() && plan.balance == StageBalance::kCount) {
    return checked_value(pipeline::cut_by_count(names.size(), stages));
  }
  if (plan.split_points.empty()) {
    return checked_value(
        pipeline::cut_by_weight(plan.weights.empty() ? bytes : plan.weights, stages));
  }
  pipeline::StageCuts cuts = checked_value(pipeline::cut_by_names(names, plan.split_points));
  TORCH_CHECK_VALUE(static_cast<int>(cuts.size()) == stages, "pipeline: ", plan.split_points.size(),
                    " split points make ", cuts.size(), " stages, but the ranks along pp have ",
                    stages, " together; name ", stages - 1, " parts");
  return cuts;
}

// ZeRO makes the step of an optimizer where that has gradients, with all ranks along pp.
void check_all_train(const ModelPlan& plan, const torch::nn::Module& module, int ranks) {
  const ModelStages stages = stages_of(module, *plan.layout, plan.handlers.pipeline, ranks);
  std::vector<bool> trains(static_cast<size_t>(ranks));
  for (int stage = 0; stage < stages.count(); ++stage) {
    for (const at::Tensor& parameter : parameters_of_stage(module, stages, stage)) {
      if (!parameter.requires_grad()) continue;
      trains[static_cast<size_t>(stages.ranks[static_cast<size_t>(stage)])] = true;
    }
  }
  const auto found = std::ranges::find(trains, false);
  const auto rank = static_cast<int>(found - trains.begin());
  TORCH_CHECK_VALUE(found == trains.end(), "pipeline: rank ", rank, " along pp has ",
                    stages.text(rank),
                    ", of which nothing is trained, but with a deepspeed_plugin all ranks make the "
                    "optimizer's step; cut the model in another place, or leave the plugin out");
}

}  // namespace

std::string ModelStages::text(int rank) const {
  std::string text;
  for (int stage = 0; stage < count(); ++stage) {
    if (ranks[static_cast<size_t>(stage)] != rank) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", "stage ", stage, ": ",
                    parts[begin(stage)].name);
    if (end(stage) > begin(stage) + 1) absl::StrAppend(&text, " to ", parts[end(stage) - 1].name);
  }
  return text;
}

std::vector<ModelPart> parts_of(const torch::nn::Module& module) {
  if (const auto* model = dynamic_cast<const ModelParts*>(&module)) return model->parts();
  std::vector<ModelPart> parts;
  if (dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr) {
    for (const auto& item : module.named_children()) parts.push_back({.name = item.key()});
  }
  return parts;
}

at::Tensor forward_parts(torch::nn::Module& module, size_t begin, size_t end, at::Tensor x,
                         const at::Tensor& positions) {
  if (auto* model = dynamic_cast<ModelParts*>(&module)) {
    return positions.defined() ? model->forward_parts_at(begin, end, std::move(x), positions)
                               : model->forward_parts(begin, end, std::move(x));
  }
  TORCH_CHECK_VALUE(!positions.defined(),
                    "pipeline: the modules of a Sequential take no positions of tokens; derive the "
                    "model from ModelParts (config/model_parts.h)");
  auto& sequential = dynamic_cast<torch::nn::SequentialImpl&>(module);
  for (size_t i = begin; i < end; ++i) {
    x = (sequential.begin() + static_cast<std::ptrdiff_t>(i))->forward(std::move(x));
  }
  return x;
}

ModelStages stages_of(const torch::nn::Module& module, const ModelLayout& layout,
                      const PipelinePlan& plan, int ranks) {
  const auto schedule = checked_value(pipeline::make_schedule(
      plan.schedule,
      {.ranks = ranks, .stages_per_rank = plan.stages_per_rank, .micro_batches = ranks}));
  ModelStages stages{.parts = parts_of(module), .cuts = {}, .ranks = stage_ranks(schedule)};
  stages.cuts =
      cuts_of(names_of(stages.parts), bytes_of(parameters_of(module, stages.parts), layout), plan,
              schedule.stages);
  return stages;
}

std::vector<at::Tensor> parameters_of_stage(const torch::nn::Module& module,
                                            const ModelStages& stages, int stage) {
  std::vector<at::Tensor> tensors;
  for (const auto& item : module.named_parameters()) {
    const auto is_used = [&item](const ModelPart& part) { return uses(part, item.key()); };
    const auto first = stages.parts.begin();
    if (std::any_of(first + static_cast<std::ptrdiff_t>(stages.begin(stage)),
                    first + static_cast<std::ptrdiff_t>(stages.end(stage)), is_used)) {
      tensors.push_back(item.value());
    }
  }
  return tensors;
}

std::shared_ptr<const ModelLayout> pipeline_layout(const LayoutContext& context) {
  const int ranks = context.mesh.size(MeshAxis::kPp);
  const torch::nn::Module& module = *context.model.module();
  if (ranks == 1 || parts_of(module).empty()) return nullptr;
  const ModelLayout before =
      context.layout != nullptr ? *context.layout : whole_layout(module, context.mesh);
  const ModelStages stages = stages_of(module, before, context.handlers.pipeline, ranks);
  const auto parameters = parameters_of(module, stages.parts);
  const auto tensors = module.named_parameters();
  const auto buffers = module.named_buffers();
  // A tied parameter may have a name in each of several stages.
  std::map<const c10::TensorImpl*, std::set<int>> ranks_of;
  for (int stage = 0; stage < stages.count(); ++stage) {
    const int rank = stages.ranks[static_cast<size_t>(stage)];
    for (size_t part = stages.begin(stage); part < stages.end(stage); ++part) {
      for (const std::string& name : parameters[part]) {
        ranks_of[tensors[name].unsafeGetTensorImpl()].insert(rank);
      }
      for (const auto& item : buffers) {
        if (!uses(stages.parts[part], item.key())) continue;
        ranks_of[item.value().unsafeGetTensorImpl()].insert(rank);
      }
    }
  }
  std::vector<TensorPlacement> placements = before.placements();
  for (TensorPlacement& each : placements) {
    const at::Tensor* const tensor = tensors.find(each.name);
    if (tensor == nullptr) continue;
    const std::set<int>& of_tensor = ranks_of[tensor->unsafeGetTensorImpl()];
    each.stages.assign(of_tensor.begin(), of_tensor.end());
  }
  // Forward passes may change those of their stages, as means over batches.
  for (const auto& item : buffers) {
    const at::Tensor& buffer = item.value();
    const auto found = ranks_of.find(buffer.unsafeGetTensorImpl());
    if (!buffer.defined() || found == ranks_of.end()) continue;
    placements.push_back({.name = item.key(),
                          .shape = buffer.sizes().vec(),
                          .dtype = buffer.scalar_type(),
                          .stages = {found->second.begin(), found->second.end()}});
  }
  return std::make_shared<const ModelLayout>(context.mesh, std::move(placements),
                                             before.divides() - before.cuts());
}

void check_pipeline(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  const int ranks = plan.mesh.size(MeshAxis::kPp);
  const torch::nn::Module& module = *context.model.module();
  TORCH_CHECK_VALUE(ranks == 1 || !parts_of(module).empty(), "pipeline: pp_size=", ranks,
                    ", but nothing says which parts a ", module_class_name(module),
                    " has; derive the model from ModelParts (config/model_parts.h), make it a "
                    "Sequential, or set pp_size to 1");
  const bool has_reducer = context.group != nullptr && !context.makes_shards;
  TORCH_CHECK_VALUE(ranks == 1 || !has_reducer || !plan.handlers.ddp.static_graph,
                    "pipeline: static_graph of DistributedDataParallelKwargs is for passes that "
                    "are all alike, but of the passes of a window the last one alone averages "
                    "gradients; leave it out");
  const bool is_divided = has_reducer || context.makes_shards;
  if (ranks > 1 && is_divided && plan.zero != nullptr) check_all_train(plan, module, ranks);
}

void drop_other_stages(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  const Mesh& mesh = plan.layout->mesh();
  if (mesh.size(MeshAxis::kPp) == 1) return;
  const at::NoGradGuard no_grad;
  for (const auto& item : context.model.module()->named_parameters()) {
    const TensorPlacement* const placement = plan.layout->find(item.key());
    if (placement == nullptr || part_number(*placement, mesh, plan.rank) >= 0) continue;
    const at::Tensor& parameter = item.value();
    const c10::Device device = parameter.is_meta() ? plan.device : parameter.device();
    internal::rebind(parameter, at::empty(cut_shape(*placement, mesh, plan.rank),
                                          parameter.options().device(device)));
    parameter.set_requires_grad(false);
  }
}

}  // namespace accelerate
