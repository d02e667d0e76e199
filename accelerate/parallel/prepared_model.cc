#include "accelerate/parallel/prepared_model.h"

#include <torch/nn/module.h>

#include "accelerate/precision/fp8_model.h"

namespace accelerate {

ModelState::ModelState(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}

ModelState::~ModelState() = default;

const Fp8Report* ModelState::fp8_report() const { return fp8_ ? &fp8_->report() : nullptr; }

PrecisionScope::PrecisionScope(const ModelState& model)
    : autocast_(model.autocast()),
      linear_(model.fp8() ? model.fp8()->forward_scope(model.ddp() != nullptr &&
                                                       model.ddp()->require_sync() &&
                                                       !model.ddp()->joined())
                          : OperatorModeScope(nullptr)) {}

}  // namespace accelerate
