#include "accelerate/step/trained_parameters.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <torch/optim/optimizer.h>

#include "accelerate/comm/operations.h"
#include "accelerate/forward/prepared_model.h"
#include "accelerate/forward/technique.h"
#include "accelerate/mesh/mesh.h"
#include "accelerate/mesh/roles.h"
#include "accelerate/parallel/layout/placement.h"
#include "accelerate/step/step_engine.h"
#include "accelerate/step/training_state.h"

namespace accelerate::internal {
namespace {

// What is trained in place of a parameter, or the parameter, of a model that is divided.
struct Part {
  TrainedParameter trained;
  const ModelState& model;
};

// Whether the job's ranks have its elements together. Ranks that divide as an earlier configuration
// said count by themselves, and so does a rank that trains all rows in another place.
bool is_of_job(const Part& part, const JobRanks& ranks) {
  const ProcessGroupPtr& shards = part.trained.shards;
  return shards != nullptr ? shards == ranks.roles.shards : part.model.placements().is_cut;
}

// Whether the tensor's elements are counted on this rank, which has the same ones as others where
// nothing divides the tensor along an axis of the ranks that sum a norm.
bool counts_here(const TrainedParameter& part, const JobRanks& ranks) {
  if (part.placement == nullptr) return true;
  const AxisSet rows = part.shards != nullptr ? ranks.roles.shard_axes : AxisSet();
  return is_first_copy(*part.placement, ranks.mesh, ranks.rank, ranks.roles.norm_axes - rows);
}

}  // namespace

bool has_parameter(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const auto& groups = optimizer.param_groups();
  return std::any_of(groups.begin(), groups.end(), [&](const auto& group) {
    return std::any_of(group.params().begin(), group.params().end(),
                       [&](const at::Tensor& other) { return other.is_same(parameter); });
  });
}

bool trains(const torch::optim::Optimizer& optimizer, const ModelState& model) {
  const std::vector<TrainedParameter> parameters = model.trained();
  return std::any_of(parameters.begin(), parameters.end(), [&](const TrainedParameter& each) {
    return has_parameter(optimizer, each.trained);
  });
}

TrainedTensors trained_of(const StepJob& job, const std::vector<at::Tensor>& parameters) {
  std::unordered_map<const at::TensorImpl*, Part> parts;
  for (const auto& model : job.training.models) {
    if (!model->is_divided()) continue;
    for (const TrainedParameter& each : model->trained()) {
      parts.emplace(each.parameter.unsafeGetTensorImpl(), Part{each, *model});
      parts.emplace(each.trained.unsafeGetTensorImpl(), Part{each, *model});
    }
  }
  const JobRanks ranks = parts.empty() ? JobRanks() : job.ranks();
  TrainedTensors trained;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const at::Tensor& parameter : parameters) {
    const auto found = parts.find(parameter.unsafeGetTensorImpl());
    const Part* part = found == parts.end() ? nullptr : &found->second;
    const at::Tensor& tensor = part == nullptr ? parameter : part->trained.trained;
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    const bool counts_in_job = part != nullptr && is_of_job(*part, ranks);
    const ProcessGroupPtr group = counts_in_job     ? ranks.roles.norm
                                  : part != nullptr ? part->trained.shards
                                                    : nullptr;
    if (group != nullptr || (part != nullptr && part->model.trains_other_tensors())) {
      trained.are_whole = false;
    }
    auto of_group = std::ranges::find(trained.shards, group, &GradientShards::group);
    if (of_group == trained.shards.end()) {
      of_group = trained.shards.insert(of_group, {.group = group});
    }
    of_group->parameters.push_back(tensor);
    of_group->counts.push_back(!counts_in_job || counts_here(part->trained, ranks));
  }
  return trained;
}

}  // namespace accelerate::internal
