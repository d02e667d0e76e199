#include "accelerate/precision/fp8_filters.h"

#include <algorithm>
#include <unordered_set>

#include <torch/nn/modules/linear.h>

namespace accelerate {
namespace {

constexpr int64_t kAlignment = 16;

void visit(const torch::nn::Module& module, const std::string& name,
           std::unordered_set<const torch::nn::Module*>& seen, std::vector<NamedLinear>& found) {
  if (!seen.insert(&module).second) return;
  if (const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(&module)) {
    found.emplace_back(name, linear);
  }
  for (const auto& child : module.named_children()) {
    visit(*child.value(), name.empty() ? child.key() : name + "." + child.key(), seen, found);
  }
}

}  // namespace

std::vector<NamedLinear> linear_layers(const torch::nn::Module& model) {
  std::vector<NamedLinear> found;
  std::unordered_set<const torch::nn::Module*> seen;
  visit(model, "", seen, found);
  return found;
}

std::pair<std::optional<std::string>, std::optional<std::string>> find_first_last_linear_layers(
    const torch::nn::Module& model) {
  const std::vector<NamedLinear> layers = linear_layers(model);
  if (layers.empty()) return {};
  return {layers.front().first, layers.back().first};
}

bool filter_linear_layers(const torch::nn::Module& module, const std::string& name,
                          const std::vector<std::string>& layers_to_filter) {
  if (const auto* linear = dynamic_cast<const torch::nn::LinearImpl*>(&module)) {
    for (const int64_t size : linear->weight.sizes()) {
      if (size % kAlignment != 0) return false;
    }
  }
  return std::find(layers_to_filter.begin(), layers_to_filter.end(), name) ==
         layers_to_filter.end();
}

Fp8Filter filter_first_and_last_linear_layers(const torch::nn::Module& model) {
  const auto [first, last] = find_first_last_linear_layers(model);
  std::vector<std::string> names;
  if (first) names = {*first, *last};
  return [names](const torch::nn::Module& module, const std::string& name) {
    return filter_linear_layers(module, name, names);
  };
}

}  // namespace accelerate
