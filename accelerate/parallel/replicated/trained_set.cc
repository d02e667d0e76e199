#include "accelerate/parallel/replicated/trained_set.h"

#include <unordered_set>

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

namespace accelerate::internal {

TrainedSet::Parameters TrainedSet::parameters(const torch::nn::Module& module) {
  std::unordered_set<const void*> sparse_weights;
  const auto note = [&](const auto* table) {
    if (table && table->options.sparse())
      sparse_weights.insert(table->weight.unsafeGetTensorImpl());
  };
  for (const auto& part : module.modules()) {
    note(part->as<torch::nn::EmbeddingImpl>());
    note(part->as<torch::nn::EmbeddingBagImpl>());
  }
  Parameters parameters;
  std::unordered_set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (!tensor.requires_grad()) continue;
    // A tied parameter has several names and one gradient.
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    parameters.names.emplace(parameters.tensors.size(), item.key());
    parameters.tensors.push_back(tensor);
    parameters.sparse.push_back(sparse_weights.contains(tensor.unsafeGetTensorImpl()));
  }
  return parameters;
}

void TrainedSet::set(const torch::nn::Module& module) {
  parameters_.clear();
  for (const at::Tensor& parameter : module.parameters()) {
    parameters_.emplace_back(parameter, parameter.requires_grad());
  }
}

bool TrainedSet::has_changed(bool finds_unused) const {
  bool has_unfrozen = false, has_frozen = false, has_trained = false;
  for (const auto& [parameter, was_trained] : parameters_) {
    const bool is_trained = parameter.requires_grad();
    has_unfrozen = has_unfrozen || (is_trained && !was_trained);
    has_frozen = has_frozen || (!is_trained && was_trained);
    has_trained = has_trained || (is_trained && was_trained);
  }
  // A model that is frozen as a whole, as a discriminator is for a while, waits for nothing.
  return has_unfrozen || (has_frozen && has_trained && !finds_unused);
}

}  // namespace accelerate::internal
