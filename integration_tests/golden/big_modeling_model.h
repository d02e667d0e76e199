/// The models and tensors of big_modeling cases, and where they lie.
///
/// Errors:  CaseError for what is not a model or a tensor.
/// Threads: the rank's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "accelerate/platform/environment.h"
#include "accelerate/tensors/state_dict.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace accelerate::golden {

/// {dtype, shape, data}
at::Tensor tensor_of(const nlohmann::json& tensor);
NamedTensors tensors_of(const nlohmann::json& tensors);
nlohmann::json data_of(const at::Tensor& tensor);
nlohmann::json described(const at::Tensor& tensor);

/// "cpu", "meta", "acc:0".
std::string device_text(const at::Tensor& tensor);

/// The answer that `make` gives, or its error, on a rank that has the accelerators 0 and 1.
nlohmann::json with_accelerators(const std::function<nlohmann::json()>& make,
                                 const Environment& environment = {});

/// The model of a case, with its ties and without a forward pass; `is_filled`: with the values of
/// the family's description. Needs a Runtime, for buffers that are not persistent.
std::shared_ptr<torch::nn::Module> model_of(const nlohmann::json& in, bool is_filled = true);

/// Gives the tensors the values of the family's description.
void fill_values(torch::nn::Module& model);

/// The groups of names that are one parameter, sorted.
nlohmann::json shared_of(const torch::nn::Module& model);

}  // namespace accelerate::golden
