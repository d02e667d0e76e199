#include "accelerate/step/trained_parameters.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include <torch/optim/optimizer.h>

#include "accelerate/comm/process_group.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/forward/technique.h"
#include "accelerate/step/training_state.h"

namespace accelerate::internal {
namespace {

struct Part {
  const TrainedParameter* trained;
  // Whether it is trained in place of the parameter.
  bool is_other;
};

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

TrainedTensors trained_of(const TrainingState& training,
                          const std::vector<at::Tensor>& parameters) {
  std::vector<std::vector<TrainedParameter>> by_model;  // which the parts point into
  std::unordered_map<const at::TensorImpl*, Part> parts;
  for (const auto& model : training.models) {
    if (!model->is_divided()) continue;
    const bool is_other = model->trains_other_tensors();
    for (const TrainedParameter& each : by_model.emplace_back(model->trained())) {
      parts.emplace(each.parameter.unsafeGetTensorImpl(), Part{&each, is_other});
      parts.emplace(each.trained.unsafeGetTensorImpl(), Part{&each, is_other});
    }
  }
  TrainedTensors trained;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const at::Tensor& parameter : parameters) {
    const auto found = parts.find(parameter.unsafeGetTensorImpl());
    const Part* part = found == parts.end() ? nullptr : &found->second;
    const at::Tensor& tensor = part == nullptr ? parameter : part->trained->trained;
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    const ProcessGroupPtr group = part == nullptr ? nullptr : part->trained->norm;
    if (group != nullptr || (part != nullptr && part->is_other)) trained.are_whole = false;
    auto of_group = std::ranges::find(trained.shards, group, &GradientShards::group);
    if (of_group == trained.shards.end()) {
      of_group = trained.shards.insert(of_group, {.group = group});
    }
    of_group->parameters.push_back(tensor);
    const bool counts = part == nullptr || part->trained->counts;
    if (!counts || !of_group->counts.empty()) {
      of_group->counts.resize(of_group->parameters.size() - 1, true);
      of_group->counts.push_back(counts);
    }
  }
  return trained;
}

}  // namespace accelerate::internal
