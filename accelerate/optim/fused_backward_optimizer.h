/// Optimizers that update a parameter during the backward pass, as soon as its gradient is there,
/// and free the gradient at once. The gradients of a model then never exist together.
///
///     optim::Lomo lomo(net->parameters());
///     lomo.fused_backward(loss, 1e-3);   // instead of loss.backward(); optimizer.step();
///
/// An ordinary backward pass knows nothing of this and gathers gradients as always; if there are
/// such gradients, those of fused_backward are added to them.
/// With a process group, each gradient is averaged over its ranks before the update; then
/// fused_backward and grad_norm are collective, and each rank uses the same parameters. Give such
/// an optimizer the parameters of a model that nothing else reduces (not DDP, or DDP in no_sync).
/// Errors: c10::ValueError for a learning rate that is not a finite number of at least 0, before
///         anything changes; for a sparse gradient, and for whatever goes wrong in the backward
///         pass: parameters whose turn had come have changed then.
/// Threads: one at a time; hooks may come from threads of the autograd engine.
/// Mirrors: lomo_optim's Lomo and AdaLomo, as far as they have this in common.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace accelerate::optim {

class FusedBackwardOptimizer : public torch::optim::Optimizer {
 public:
  using torch::optim::Optimizer::Optimizer;

  /// Backward pass and update. `lr` is for all parameters; without it, each group has its own.
  /// Errors: c10::Error if gradients are to be clipped by norm and grad_norm was not called before.
  virtual void fused_backward(const at::Tensor& loss, std::optional<double> lr = std::nullopt);

  /// A backward pass for the norm of all gradients, which keeps none; the graph is retained for the
  /// fused_backward that has to follow. Returns the norm, a 0-dim tensor; zero where there is no
  /// gradient.
  at::Tensor grad_norm(const at::Tensor& loss);

  /// Nothing is left to do. Errors: c10::ValueError for a closure.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Gradients are averaged over this group; null for none.
  void set_process_group(c10::intrusive_ptr<c10d::ProcessGroup> group);

 protected:
  struct Clipping {
    double norm = 0;   // 0: not at all
    double value = 0;  // 0: not at all
  };
  virtual Clipping clipping() const = 0;
  /// The update itself, without recording for autograd. `grad` is the optimizer's to change.
  virtual void update(at::Tensor& parameter, at::Tensor grad, double lr,
                      const torch::optim::OptimizerOptions& options) = 0;

 private:
  using OnGradient = std::function<void(at::Tensor& parameter, size_t group)>;
  void run_backward(const at::Tensor& loss, bool retain_graph, const OnGradient& on_gradient);
  at::Tensor reduced_gradient(const at::Tensor& parameter) const;

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  at::Tensor clip_factor_;  // from grad_norm, for the fused_backward that follows
};

}  // namespace accelerate::optim
