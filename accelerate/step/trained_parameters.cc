#include "accelerate/step/trained_parameters.h"

#include <algorithm>

#include <torch/optim/optimizer.h>

#include "absl/container/flat_hash_set.h"
#include "accelerate/comm/process_group.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/forward/technique.h"
#include "accelerate/step/training_state.h"

namespace accelerate::internal {
namespace {

struct Part {
  const TrainedParameter* trained = nullptr;  // null for a parameter that is not divided
  // Whether it is trained in place of the parameter.
  bool is_other = false;
};

Part part_of(const TrainingState& training, const at::Tensor& parameter) {
  for (const auto& model : training.models) {
    if (const TrainedParameter* found = model->find_divided(parameter)) {
      return {.trained = found, .is_other = model->trains_other_tensors()};
    }
  }
  return {};
}

}  // namespace

bool has_parameter(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  return std::ranges::any_of(optimizer.param_groups(), [&](const auto& group) {
    return std::ranges::any_of(group.params(),
                               [&](const at::Tensor& other) { return other.is_same(parameter); });
  });
}

bool trains(const torch::optim::Optimizer& optimizer, const ModelState& model) {
  return std::ranges::any_of(model.trained(), [&](const TrainedParameter& each) {
    return has_parameter(optimizer, each.trained);
  });
}

TrainedTensors trained_of(const TrainingState& training,
                          const std::vector<at::Tensor>& parameters) {
  TrainedTensors trained;
  absl::flat_hash_set<const at::TensorImpl*> seen;
  seen.reserve(parameters.size());
  for (const at::Tensor& parameter : parameters) {
    const Part part = part_of(training, parameter);
    const at::Tensor& tensor = part.trained == nullptr ? parameter : part.trained->trained;
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    const ProcessGroupPtr group = part.trained == nullptr ? nullptr : part.trained->norm;
    if (group != nullptr || part.is_other) trained.are_whole = false;
    auto of_group = std::ranges::find(trained.shards, group, &GradientShards::group);
    if (of_group == trained.shards.end()) {
      of_group = trained.shards.insert(of_group, {.group = group});
    }
    of_group->parameters.push_back(tensor);
    const bool counts = part.trained == nullptr || part.trained->counts;
    if (!counts || !of_group->counts.empty()) {
      of_group->counts.resize(of_group->parameters.size() - 1, true);
      of_group->counts.push_back(counts);
    }
  }
  return trained;
}

}  // namespace accelerate::internal
