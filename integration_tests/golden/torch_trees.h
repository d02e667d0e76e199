/// The models of a case as torch::nn::Modules: modules whose classes have the tree's names, of
/// which Linear is LibTorch's where it has the parameters of one. Values are zeros. On a rank,
/// buffers that are not persistent are marked so.
///
/// Errors:  CaseError for what is not a model.
/// Threads: pure functions.
#pragma once

#include <memory>

#include <torch/nn/module.h>
#include <nlohmann/json.hpp>

namespace accelerate::golden {

/// `tied` are groups of names, of which the first gives the others its tensor. `special` are the
/// attributes of the root that are told of the model's structure. Either may be null.
std::shared_ptr<torch::nn::Module> torch_module_of(const nlohmann::json& model,
                                                   const nlohmann::json& tied,
                                                   const nlohmann::json& special);

}  // namespace accelerate::golden
