#include "accelerate/parallel/prepared_model.h"

#include <torch/nn/module.h>

#include "accelerate/parallel/precision_stages.h"
#include "accelerate/precision/fp8_model.h"

namespace accelerate {

ModelState::ModelState(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}

ModelState::~ModelState() = default;

void ModelState::add_no_sync_counts(NoSyncScope::Counts& counts) const {
  for (const std::unique_ptr<Stage>& stage : stages_) {
    if (NoSyncCount count = stage->no_sync_count()) counts.push_back(std::move(count));
  }
}

void ModelState::trigger_sync_in_backward() const {
  for (const std::unique_ptr<Stage>& stage : stages_) stage->trigger_sync_in_backward();
}

const Fp8Report* internal::fp8_report(const ModelState& model) {
  const auto* fp8 = model.find_stage<Fp8Stage>();
  return fp8 ? &fp8->model()->report() : nullptr;
}

}  // namespace accelerate
