#include "accelerate/parallel/pipeline/pipeline_technique.h"

#include <algorithm>
#include <map>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "absl/cleanup/cleanup.h"
#include "accelerate/base/mesh_axis.h"
#include "accelerate/comm/operations.h"
#include "accelerate/config/kwargs_handlers.h"
#include "accelerate/forward/forward_call.h"
#include "accelerate/mesh/device_mesh.h"
#include "accelerate/operators/operator_mode.h"
#include "accelerate/parallel/layout/model_layout.h"
#include "accelerate/parallel/layout/placement.h"
#include "accelerate/plan/plan.h"
#include "accelerate/runtime/runtime.h"

namespace accelerate {
namespace {

std::vector<GradientSums::Owed> owed_for(const std::vector<EqualAlong>& tied) {
  std::vector<GradientSums::Owed> owed;
  for (const EqualAlong& each : tied) owed.push_back({each.along.group, each.trained});
  return owed;
}

// What the rank's stages share with others. Groups are made in one order on all ranks.
std::vector<EqualAlong> tied_of(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  const DeviceMesh& mesh = *plan.device_mesh;
  const int rank = mesh.coordinate(MeshAxis::kPp);
  std::map<std::vector<int>, NamedTensors> by_ranks;
  const auto is_cut = [&plan](const std::string& name) {
    const TensorPlacement* const placement = plan.layout->find(name);
    return placement != nullptr && !placement->cuts.empty() &&
           part_number(*placement, plan.mesh, plan.rank) >= 0;
  };
  for (const TrainedParameter& each :
       trained_under(context.made, *context.model.module(), is_cut)) {
    const TensorPlacement* const placement = plan.layout->find(each.name);
    if (placement == nullptr || placement->stages.size() < 2) continue;
    if (std::ranges::count(placement->stages, rank) == 0) continue;
    auto& trained = by_ranks[placement->stages];
    const auto is_same = [&each](const auto& other) { return other.second.is_same(each.trained); };
    if (std::ranges::none_of(trained, is_same)) trained.emplace_back(each.name, each.trained);
  }
  const std::vector<int> column = mesh.mesh().group(mesh.rank(), MeshAxis::kPp);
  std::vector<EqualAlong> tied;
  for (auto& [ranks, trained] : by_ranks) {
    RanksAlong along = {
        .axis = MeshAxis::kPp, .group = mesh.among(MeshAxis::kPp, ranks), .ranks = {}};
    for (const int each : ranks) along.ranks.push_back(column[static_cast<size_t>(each)]);
    tied.push_back({.along = std::move(along), .trained = std::move(trained)});
  }
  return tied;
}

template <typename Forward, typename... Inputs>
at::Tensor inside_techniques(const ModelState& model, Forward& forward, Inputs&&... inputs) {
  ForwardCallOf<Forward, Inputs...> call(forward, std::forward<Inputs>(inputs)...);
  ForwardPass(model.techniques(), call).proceed();
  return call.take_output();
}

void warn_of_batch_statistics(const torch::nn::Module& module, int rank) {
  if (rank != 0) return;
  for (const auto& item : module.named_buffers()) {
    const size_t dot = item.key().rfind("running_mean");
    if (dot == std::string::npos) continue;
    TORCH_WARN("pipeline: \"", item.key(),
               "\" is a mean over batches: a layer that normalises a batch normalises each "
               "micro-batch by itself, so that results depend on the number of micro-batches; "
               "LayerNorm or GroupNorm do not");
    return;
  }
}

}  // namespace

PipelineTechnique::PipelineTechnique(ModelStages stages, pipeline::ScheduleKind schedule,
                                     ProcessGroupPtr group, std::unique_ptr<StageChannels> channels,
                                     std::vector<EqualAlong> tied, bool gathers)
    : stages_(std::move(stages)),
      schedule_(schedule),
      group_(std::move(group)),
      channels_(std::move(channels)),
      tied_(std::move(tied)),
      sums_(owed_for(tied_)),
      gathers_(gathers) {
  const at::NoGradGuard no_grad;
  for (const EqualAlong& each : tied_) {
    std::vector<at::Tensor> values;
    for (const auto& [name, trained] : each.trained) values.push_back(trained.detach());
    broadcast_tensors(each.along.group, values, 0);
  }
}

void PipelineTechnique::forward(ForwardPass& pass) {
  TORCH_CHECK_VALUE(runs_stage_, "pipeline: a rank cannot call the model, of which rank ", rank(),
                    " along pp has ", stages_.text(rank()),
                    "; train with Accelerator::train_batch and evaluate with evaluate_batch, which "
                    "all ranks call");
  pass.proceed();
}

at::Tensor PipelineTechnique::forward_stage(const ModelState& model, int stage, at::Tensor x,
                                            const at::Tensor& positions,
                                            std::shared_ptr<LateGradients> late) {
  runs_stage_ = true;
  const absl::Cleanup leave = [this] { runs_stage_ = false; };
  // Around the handlers of techniques, which compute what is theirs.
  const OperatorModeScope products(std::move(late));
  const auto parts_at = [&](at::Tensor input, const at::Tensor& of_tokens) {
    return forward_parts(*model.module(), stages_.begin(stage), stages_.end(stage),
                         std::move(input), of_tokens);
  };
  // Techniques look for the positions among the inputs.
  if (positions.defined()) return inside_techniques(model, parts_at, std::move(x), positions);
  const auto parts = [&](at::Tensor input) { return parts_at(std::move(input), at::Tensor()); };
  return inside_techniques(model, parts, std::move(x));
}

void PipelineTechnique::end_window(bool synchronises) {
  sums_.end(synchronises);
  if (!synchronises) return;
  for (const EqualAlong& each : tied_) check_equal_gradients(each, Runtime::current(), gathers_);
}

std::unique_ptr<Technique> make_pipeline_technique(const TechniqueContext& context) {
  const ModelPlan& plan = context.plan;
  const int ranks = plan.mesh.size(MeshAxis::kPp);
  if (ranks == 1) return nullptr;
  const PipelinePlan& given = plan.handlers.pipeline;
  const torch::nn::Module& module = *context.model.module();
  ModelStages stages = stages_of(module, *plan.layout, given, ranks);
  warn_of_batch_statistics(module, plan.rank);
  auto channels = std::make_unique<StageChannels>(stages.ranks, *plan.device_mesh);
  return std::make_unique<PipelineTechnique>(
      std::move(stages), given.schedule, plan.device_mesh->group(MeshAxis::kPp),
      std::move(channels), tied_of(context), plan.compares_ranks);
}

}  // namespace accelerate
