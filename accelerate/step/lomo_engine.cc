#include "accelerate/step/lomo_engine.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "accelerate/forward/model_state.h"
#include "accelerate/forward/technique.h"
#include "accelerate/optim/lomo.h"
#include "accelerate/precision/autocast.h"
#include "accelerate/runtime/shared_objects.h"
#include "accelerate/step/trained_parameters.h"
#include "accelerate/step/training_state.h"

namespace accelerate::internal {

std::vector<std::shared_ptr<SharedOptimizer>> LomoEngine::alive() const {
  std::vector<std::shared_ptr<SharedOptimizer>> found;
  for_each_alive(optimizers_, [&](const auto& optimizer) { found.push_back(optimizer); });
  return found;
}

bool LomoEngine::has_optimizer() const {
  return std::ranges::any_of(optimizers_, [](const auto& each) { return !each.expired(); });
}

void LomoEngine::check(const torch::optim::Optimizer& optimizer) const {
  TORCH_CHECK_VALUE(dynamic_cast<const optim::FusedBackwardOptimizer*>(&optimizer) == nullptr ||
                        !job_.training.precision.scaler(),
                    "an optimizer that steps during the backward pass would use the scaled "
                    "gradients of mixed_precision=\"fp16\" and of MS-AMP; use bf16");
  inside_->check(optimizer);
}

void LomoEngine::prepare(const std::shared_ptr<SharedOptimizer>& optimizer,
                         const ProcessGroupPtr& ranks) {
  inside_->prepare(optimizer, ranks);
  auto* lomo = dynamic_cast<optim::FusedBackwardOptimizer*>(optimizer->optimizer.get());
  if (lomo == nullptr) return;
  lomo->set_process_group(ranks);
  register_in(optimizers_, optimizer);
}

void LomoEngine::prepare_models() {
  inside_->prepare_models();
  const auto optimizers = alive();
  for (const auto& model : job_.training.models) {
    NoSyncScope::Counts counts;
    model->add_no_sync_counts(counts);
    if (counts.empty()) continue;
    const bool leaves = std::ranges::any_of(
        optimizers, [&](const auto& lomo) { return trains(*lomo->optimizer, *model); });
    if (leaves == (model->reduced_by_optimizer != nullptr)) continue;
    for (const at::Tensor& parameter : model->module()->parameters()) {
      TORCH_CHECK_VALUE(
          !leaves || !parameter.requires_grad() ||
              std::ranges::any_of(
                  optimizers,
                  [&](const auto& lomo) { return has_parameter(*lomo->optimizer, parameter); }),
          "an optimizer that steps during the backward pass takes all parameters of a model that "
          "ranks train together, or none of them");
    }
    model->reduced_by_optimizer =
        leaves ? std::make_unique<NoSyncScope>(std::move(counts)) : nullptr;
  }
}

void LomoEngine::backward(const at::Tensor& loss, const BackwardOptions& options) {
  if (!has_optimizer() || job_.training.precision.scaler()) {
    return inside_->backward(loss, options);
  }
  TORCH_CHECK_VALUE(!options.gradient.defined() && !options.retain_graph && !options.inputs &&
                        !options.create_graph,
                    "backward: an optimizer that steps during the backward pass takes none of "
                    "autograd's options");
  fused_backward(loss, options.learning_rate);
}

void LomoEngine::fused_backward(const at::Tensor& loss, std::optional<double> learning_rate) {
  const auto optimizers = alive();
  TORCH_CHECK_VALUE(!optimizers.empty(),
                    "lomo_backward: no prepared optimizer steps during the backward pass; was a "
                    "LOMO optimizer passed to prepare?");
  TORCH_CHECK_VALUE(optimizers.size() == 1, "lomo_backward: ", optimizers.size(),
                    " prepared optimizers step during the backward pass; there can be one only");
  SharedOptimizer& optimizer = *optimizers.front();
  optimizer.wait_for_readers();
  dynamic_cast<optim::FusedBackwardOptimizer&>(*optimizer.optimizer)
      .fused_backward(loss, learning_rate);
  drop_cast_weights();
  record_optimizer_step();
}

}  // namespace accelerate::internal
