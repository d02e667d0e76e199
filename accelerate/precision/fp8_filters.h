/// Which Linear layers of a model are computed in fp8.
///
/// Local.
/// Mirrors: accelerate utils/ao.py. There the public default filter looks for the first and last
///          layer inside of the layer it is asked about; here a filter is made for a whole model.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class LinearImpl;
class Module;
}  // namespace torch::nn

namespace accelerate {

/// Says yes to a layer, given its name in the model.
using Fp8Filter = std::function<bool(const torch::nn::Module& module, const std::string& name)>;

/// A Linear layer and where it stands, as in "encoder.0.fc"; the model itself has the name "".
using NamedLinear = std::pair<std::string, const torch::nn::LinearImpl*>;

/// All of them, in module order, each once.
std::vector<NamedLinear> linear_layers(const torch::nn::Module& model);

/// Names of the first and the last one; nothing of a model without any.
std::pair<std::optional<std::string>, std::optional<std::string>> find_first_last_linear_layers(
    const torch::nn::Module& model);

/// No to a Linear layer with a dimension that is no multiple of 16, and to the names listed.
bool filter_linear_layers(const torch::nn::Module& module, const std::string& name,
                          const std::vector<std::string>& layers_to_filter);

/// A filter that says no to these and to the model's first and last Linear layer.
Fp8Filter filter_first_and_last_linear_layers(const torch::nn::Module& model);

}  // namespace accelerate
