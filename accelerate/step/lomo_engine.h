/// The engine of an optimizer that steps during the backward pass (LOMO, AdaLOMO): the pass is the
/// optimizer's, which averages each gradient, updates its parameter and frees the gradient at once.
///
/// This engine is in every chain, because such an optimizer may be prepared at any time; without
/// one the pass is that of the engine inside. The step() of such an optimizer changes no parameter.
/// Other optimizers of the job train what the pass gives gradients to, as ever.
///
/// Threads: the rank's thread.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "accelerate/step/step_engine.h"

namespace accelerate::internal {

class LomoEngine final : public StepEngine {
 public:
  using StepEngine::prepare;
  using StepEngine::StepEngine;

  /// Whether such an optimizer is prepared, and not freed. Local.
  bool has_optimizer() const;
  /// A backward pass of that optimizer, whose groups' rates apply without a `learning_rate`. The
  /// loss is not scaled. Collective. Errors: c10::ValueError if there is no such optimizer, or
  /// more than one.
  void fused_backward(const at::Tensor& loss, std::optional<double> learning_rate);

  void check(const torch::optim::Optimizer& optimizer) const override;
  void prepare(const std::shared_ptr<SharedOptimizer>& optimizer,
               const ProcessGroupPtr& ranks) override;
  /// Models whose gradients such an optimizer reduces do not synchronise them as well.
  void prepare_models() override;
  void backward(const at::Tensor& loss, const BackwardOptions& options) override;

 private:
  std::vector<std::shared_ptr<SharedOptimizer>> alive() const;

  std::vector<std::weak_ptr<SharedOptimizer>> optimizers_;
};

}  // namespace accelerate::internal
