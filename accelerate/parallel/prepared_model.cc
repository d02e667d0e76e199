#include "accelerate/parallel/prepared_model.h"

#include <torch/nn/module.h>

namespace accelerate {

ModelState::ModelState(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}

ModelState::~ModelState() = default;

}  // namespace accelerate
