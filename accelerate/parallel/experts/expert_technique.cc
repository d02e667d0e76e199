#include "accelerate/parallel/experts/expert_technique.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/strings/str_cat.h"
#include "accelerate/base/mesh_axis.h"
#include "accelerate/comm/operations.h"
#include "accelerate/config/model_parts.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/operators/construction_record.h"
#include "accelerate/operators/deferred_values.h"
#include "accelerate/parallel/experts/mixture.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/layout/placement.h"
#include "accelerate/plan/plan.h"
#include "accelerate/tensors/tensor_memory.h"
#include "accelerate/values/module_class.h"

namespace accelerate {
namespace {

struct NamedMixture {
  std::string name;  // "" for the model itself
  std::shared_ptr<MixtureOfExpertsImpl> mixture;
};

// One with several names under each of them.
std::vector<NamedMixture> mixtures_of(const torch::nn::Module& module) {
  std::vector<NamedMixture> found;
  const auto add = [&found](const std::string& name, const auto& part) {
    if (auto mixture = std::dynamic_pointer_cast<MixtureOfExpertsImpl>(part)) {
      found.push_back({name, std::move(mixture)});
    }
  };
  for (const auto& item : module.named_modules("", /*include_self=*/true)) {
    add(item.key(), item.value());
  }
  return found;
}

// Whether ranks along tp have parts of the experts' inside.
bool is_divided_inside(const NamedMixture& mixture, const Mesh& mesh) {
  return mesh.size(MeshAxis::kTp) > 1 && mixture.mixture->options().divides_along_tp;
}

// The dim of an expert's tensor that is its inside.
int64_t inside_dim(const std::string& name) { return name == "down" ? 2 : 1; }

void check_divides(const NamedMixture& mixture, int ranks) {
  const int64_t experts = mixture.mixture->options().router.experts;
  if (experts % ranks == 0) return;
  int64_t fitting = std::min<int64_t>(ranks, experts);
  while (experts % fitting != 0) --fitting;
  TORCH_CHECK_VALUE(false, "expert parallelism: mixture \"", mixture.name, "\" has ", experts,
                    " experts, which the ", ranks,
                    " ranks along ep do not divide evenly; an ep_size of ", fitting,
                    " does, and so would ", (experts / ranks + 1) * ranks, " experts");
}

void check_divides_inside(const NamedMixture& mixture, int ranks) {
  const int64_t inside = mixture.mixture->options().intermediate;
  int64_t fitting = std::min<int64_t>(ranks, inside);
  while (inside % fitting != 0) --fitting;
  TORCH_CHECK_VALUE(inside % ranks == 0, "expert parallelism: mixture \"", mixture.name,
                    "\" has experts of size ", inside, ", which the ", ranks,
                    " ranks along tp do not divide evenly; a tp_size of ", fitting,
                    " does, or leave divides_along_tp off");
}

// This rank's part of the experts; it may be a part of the parameter's memory.
at::Tensor experts_of_rank(const at::Tensor& parameter, const ModelPlan& plan) {
  const int64_t count = parameter.size(0) / plan.mesh.size(MeshAxis::kEp);
  const int64_t first = count * plan.mesh.coordinate(plan.rank, MeshAxis::kEp);
  if (!parameter.is_meta()) return parameter.detach().narrow(0, first, count);
  const at::Tensor whole = parameter.detach();
  TORCH_CHECK_VALUE(is_recorded(whole), "prepare: experts of sizes ", whole.sizes(),
                    " are on \"meta\" and were not made in init_empty_weights, so that they have "
                    "no values; load a checkpoint into them, or make them there");
  DeferredValues* const stored = deferred_values(whole);
  if (stored == nullptr) return recorded_values({whole}).front().narrow(0, first, count);
  at::Tensor part =
      at::empty(whole.narrow(0, first, count).sizes(), whole.options().device(plan.device));
  stored->read(first * (whole.numel() / whole.size(0)), part.flatten());
  return part;
}

at::Tensor part_of_inside(const at::Tensor& experts, int64_t dim, const ModelPlan& plan) {
  const int64_t size = experts.size(dim) / plan.mesh.size(MeshAxis::kTp);
  return experts.narrow(dim, size * plan.mesh.coordinate(plan.rank, MeshAxis::kTp), size);
}

}  // namespace

ExpertParallelTechnique::ExpertParallelTechnique(const std::vector<at::Tensor>& parameters,
                                                 int token_shares) {
  if (token_shares == 1) return;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.requires_grad()) continue;
    const unsigned hook = parameter.register_hook(
        [token_shares](const at::Tensor& gradient) { return gradient / token_shares; });
    hooks_.emplace_back(parameter, hook);
  }
}

ExpertParallelTechnique::~ExpertParallelTechnique() {
  for (const auto& [parameter, hook] : hooks_) parameter.remove_hook(hook);
}

std::shared_ptr<const ModelLayout> expert_parallel_layout(const LayoutContext& context) {
  const int ranks = context.mesh.size(MeshAxis::kEp);
  const int inside_ranks = context.mesh.size(MeshAxis::kTp);
  if (ranks == 1 && inside_ranks == 1) return nullptr;
  const torch::nn::Module& module = *context.model.module();
  const std::vector<NamedMixture> mixtures = mixtures_of(module);
  TORCH_CHECK_VALUE(ranks == 1 || !mixtures.empty(), "expert parallelism: ep_size=", ranks,
                    ", but a ", module_class_name(module),
                    " has no MixtureOfExperts among its modules; set ep_size to 1");
  if (mixtures.empty()) return nullptr;
  const bool divides_inside = is_divided_inside(mixtures.front(), context.mesh);
  if (ranks == 1 && !divides_inside) return nullptr;
  const ModelLayout before =
      context.layout != nullptr ? *context.layout : whole_layout(module, context.mesh);
  const AxisSet inputs = before.divides() - before.cuts();
  std::vector<TensorPlacement> placements = before.placements();
  for (const NamedMixture& each : mixtures) {
    check_divides(each, ranks);
    TORCH_CHECK_VALUE(is_divided_inside(each, context.mesh) == divides_inside,
                      "expert parallelism: ranks along tp have parts of the experts of mixture \"",
                      divides_inside ? mixtures.front().name : each.name,
                      "\" and all of those of \"",
                      divides_inside ? each.name : mixtures.front().name,
                      "\"; set divides_along_tp alike in all mixtures of a model");
    if (divides_inside) check_divides_inside(each, inside_ranks);
    const std::string prefix = each.name.empty() ? "" : absl::StrCat(each.name, ".");
    for (const auto& item : each.mixture->experts()->named_parameters()) {
      const auto placement = std::ranges::find(
          placements, absl::StrCat(prefix, "experts.", item.key()), &TensorPlacement::name);
      if (placement == placements.end()) continue;
      if (ranks > 1) {
        placement->cuts.push_back({.axis = MeshAxis::kEp, .dim = 0});
        // Ranks with the same experts have other tokens.
        placement->sums |=
            (AxisSet{MeshAxis::kDpReplicate, MeshAxis::kEdp} | inputs) - AxisSet{MeshAxis::kEp};
      }
      if (divides_inside) {
        placement->cuts.push_back(
            {.axis = MeshAxis::kTp, .dim = static_cast<int>(inside_dim(item.key()))});
      }
    }
  }
  return std::make_shared<const ModelLayout>(context.mesh, std::move(placements), inputs);
}

void check_expert_parallel(const TechniqueContext& context) {
  const torch::nn::Module& module = *context.model.module();
  const bool has_stages = context.plan.mesh.size(MeshAxis::kPp) > 1;
  if (!has_stages || dynamic_cast<const ModelParts*>(&module) != nullptr) return;
  for (const NamedMixture& each : mixtures_of(module)) {
    const RouterOptions& router = each.mixture->options().router;
    TORCH_CHECK_VALUE(router.balance_loss == 0 && router.z_loss == 0,
                      "expert parallelism: the router of mixture \"", each.name,
                      "\" has losses, which the stages of a ", module_class_name(module),
                      " do not hand over; derive the model from ModelParts "
                      "(config/model_parts.h), whose take_router_loss does, or leave balance_loss "
                      "and z_loss 0");
  }
}

void cut_experts(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  const at::NoGradGuard no_grad;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const NamedMixture& each : mixtures_of(*context.model.module())) {
    const bool divides_inside = is_divided_inside(each, plan.mesh);
    if (plan.mesh.size(MeshAxis::kEp) == 1 && !divides_inside) continue;
    for (const auto& item : each.mixture->experts()->named_parameters()) {
      const at::Tensor& parameter = item.value();
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      at::Tensor part = experts_of_rank(parameter, plan);
      if (divides_inside) part = part_of_inside(part, inside_dim(item.key()), plan);
      internal::rebind(parameter, part.clone(at::MemoryFormat::Contiguous));
    }
    each.mixture->divide(plan.device_mesh->group(MeshAxis::kEp),
                         divides_inside ? plan.device_mesh->group(MeshAxis::kTp) : nullptr);
  }
}

std::unique_ptr<Technique> make_expert_parallel_technique(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  if (!context.trains || plan.layout == nullptr || plan.mesh.size(MeshAxis::kEp) == 1) {
    return nullptr;
  }
  std::vector<at::Tensor> experts;
  std::unordered_set<const c10::TensorImpl*> seen;
  AxisSet alike = AxisSet::all() - AxisSet{MeshAxis::kEp, MeshAxis::kPp};
  for (const NamedMixture& each : mixtures_of(*context.model.module())) {
    if (is_divided_inside(each, plan.mesh)) alike = alike - AxisSet{MeshAxis::kTp};
    for (const at::Tensor& parameter : each.mixture->experts()->parameters()) {
      if (parameter.numel() == 0) continue;  // of another stage
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) experts.push_back(parameter);
    }
  }
  if (const ProcessGroupPtr group = plan.device_mesh->group(alike)) {
    const at::NoGradGuard no_grad;
    broadcast_tensors(group, experts, 0);
  }
  return std::make_unique<ExpertParallelTechnique>(experts, plan.roles.tokens.count);
}

}  // namespace accelerate
