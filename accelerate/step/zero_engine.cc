#include "accelerate/step/zero_engine.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "absl/cleanup/cleanup.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/optim/state_on_disk.h"
#include "accelerate/step/trained_parameters.h"
#include "accelerate/step/training_state.h"

namespace accelerate::internal {

void ZeroEngine::prepare(const std::shared_ptr<SharedOptimizer>& optimizer,
                         const ProcessGroupPtr& ranks) {
  inside_->prepare(optimizer, ranks);
  optimizers_.push_back({.optimizer = optimizer, .steps = steps_});
  job_.training.kept.push_back(optimizer);
}

void ZeroEngine::prepare(const std::shared_ptr<SharedScheduler>& scheduler) {
  inside_->prepare(scheduler);
  schedulers_.push_back(scheduler);
  job_.training.kept.push_back(scheduler);
}

void ZeroEngine::backward(const at::Tensor& loss, const BackwardOptions& options) {
  if (job_.gradients.sync_gradients()) {
    for_each_alive(job_.training.optimizers, [](const auto& optimizer) {
      if (optimizer->on_disk != nullptr) optimizer->on_disk->expect_step();
    });
  }
  inside_->backward(loss, options);
}

void ZeroEngine::end_backward() {
  inside_->end_backward();
  try {
    for (const auto& model : job_.training.models) model->check_reads();
  } catch (const c10::Error&) {
    // They are NaN, and the user's zero_grad has no effect.
    for (const Stepped& each : optimizers_) {
      if (const auto optimizer = each.optimizer.lock()) optimizer->zero_grad(/*set_to_none=*/true);
    }
    throw;
  }
  if (!job_.gradients.sync_gradients()) return;
  std::vector<std::pair<std::shared_ptr<SharedOptimizer>, Steps>> with_gradients;
  for (const Stepped& each : optimizers_) {
    auto optimizer = each.optimizer.lock();
    if (optimizer != nullptr && optimizer->has_gradients()) {
      with_gradients.emplace_back(std::move(optimizer), each.steps);
    }
  }
  for (const auto& [optimizer, steps] : with_gradients) make_step(*optimizer, steps);
  for_each_alive(schedulers_, [&](const auto& scheduler) {
    if (scheduler->follows_skipped_step()) return;
    if (std::ranges::any_of(with_gradients,
                            [&](const auto& each) { return scheduler->follows(*each.first); })) {
      scheduler->step();
    }
  });
}

void ZeroEngine::make_step(SharedOptimizer& optimizer, const Steps& steps) {
  // Also after an error, since the user's zero_grad has no effect.
  const absl::Cleanup forget = [&optimizer] { optimizer.zero_grad(/*set_to_none=*/true); };
  optimizer.average_and_unscale_gradients(job_.gradients);
  const std::vector<GradientShards> trained =
      trained_of(job_.training, optimizer.parameters()).shards;
  norm_ = steps.max_norm > 0 ? clip_sharded_grad_norm_(trained, steps.max_norm, job_.device)
                             : get_sharded_total_norm(trained, job_.device);
  optimizer.step(job_.gradients, {.elements = steps.elements});
}

at::Tensor ZeroEngine::clip_grad_norm(const std::vector<at::Tensor>& /*parameters*/,
                                      double /*max_norm*/, const ClipGradNormOptions& /*options*/) {
  // The backward pass has clipped what the optimizers' steps have used.
  return norm_.defined() ? norm_ : at::zeros({}, at::TensorOptions(job_.device));
}

void ZeroEngine::clip_grad_value(const std::vector<at::Tensor>& /*parameters*/,
                                 double /*clip_value*/) {
  TORCH_CHECK_VALUE(false,
                    "clip_grad_value_: backward() has made the optimizer's step, so there are no "
                    "gradients left; the engine's gradient_clipping limits their norm");
}

at::Tensor ZeroEngine::step(SharedOptimizer& /*optimizer*/, GradientState& /*gradient_state*/,
                            torch::optim::Optimizer::LossClosure closure) {
  TORCH_CHECK_VALUE(!closure, "step: backward() makes this optimizer's step, without a closure");
  return {};
}

}  // namespace accelerate::internal
