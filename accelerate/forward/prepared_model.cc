#include "accelerate/forward/prepared_model.h"

#include <torch/nn/module.h>

namespace accelerate {

std::vector<TrainedParameter> ModelState::trained() const {
  if (const Technique* technique = sharding()) return *technique->trained();
  std::vector<TrainedParameter> parameters;
  for (const auto& item : module_->named_parameters()) {
    parameters.push_back({item.key(), item.value(), item.value()});
  }
  return parameters;
}

const Fp8Report* ModelState::fp8_report() const {
  for (const std::unique_ptr<Technique>& technique : techniques_) {
    if (const Fp8Report* report = technique->fp8_report()) return report;
  }
  return nullptr;
}

}  // namespace accelerate
