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
///         anything changes; also for a sparse gradient and any error in the backward pass, by when
///         the parameters before it have been updated.
/// Threads: one at a time; hooks may come from threads of the autograd engine.
/// Mirrors: lomo_optim's Lomo and AdaLomo, as far as they have this in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/optim/optimizer_fields.h"

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

  /// Does nothing, as fused_backward has updated the parameters. Errors: c10::ValueError for a
  /// closure.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Gradients are averaged over this group; null for none.
  void set_process_group(c10::intrusive_ptr<c10d::ProcessGroup> group);

 protected:
  struct Clipping {
    double norm = 0;   // 0: no clipping
    double value = 0;  // 0: no clipping
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

/// LOMO: stochastic gradient descent fused with the backward pass, without any state.
///
/// After Lv et al., "Full Parameter Fine-tuning for Large Language Models with Limited Resources",
/// 2023.
/// Mirrors: lomo_optim.Lomo.
struct LomoOptions : internal::OptionsOf<LomoOptions> {
  LomoOptions(double lr = 1e-3) : lr_(lr) {}  // NOLINT: as LibTorch's options
  TORCH_ARG(double, lr);
  /// 0: no clipping. The optimizer's defaults decide for all groups.
  TORCH_ARG(double, clip_grad_norm) = 0;
  TORCH_ARG(double, clip_grad_value) = 0;
  /// Decoupled: each step multiplies the parameter by 1 - lr * weight_decay.
  TORCH_ARG(double, weight_decay) = 0;

 public:
  void check() const;
};
ACCELERATE_ARGUMENTS(LomoOptions, lr, clip_grad_norm, clip_grad_value, weight_decay)

/// LOMO keeps no state; archives have a place for it.
struct LomoParamState : internal::ParamStateOf<LomoParamState> {};
ACCELERATE_ARGUMENTS(LomoParamState)

class Lomo : public internal::OptimizerOf<LomoOptions, LomoParamState, FusedBackwardOptimizer> {
 public:
  using OptimizerOf::OptimizerOf;

 protected:
  Clipping clipping() const override;
  void update(at::Tensor& parameter, at::Tensor grad, double lr,
              const torch::optim::OptimizerOptions& options) override;
};

/// AdaLOMO: an adaptive learning rate for every parameter, fused with the backward pass. Its second
/// moment is kept as row and column means, so that the state is small.
///
/// After Lv et al., "AdaLomo: Low-memory Optimization with Adaptive Learning Rate", 2023. For a
/// gradient g of at least two dims, in step t:
///     b = 1 - t^decay_rate
///     r = b r + (1 - b) mean over columns of (g^2 + eps1);  c likewise over rows
///     u = g / sqrt(r c / mean(r))
/// and for others u = g / sqrt(v) with v = b v + (1 - b) (g^2 + eps1). Then
///     parameter -= lr max(eps2, rms(parameter)) u / max(1, rms(u) / clip_threshold)
/// Mirrors: lomo_optim.AdaLomo.
struct AdaLomoOptions : internal::OptionsOf<AdaLomoOptions> {
  AdaLomoOptions(double lr = 1e-3) : lr_(lr) {}  // NOLINT: as LibTorch's options
  using eps_t = std::tuple<double, double>;
  TORCH_ARG(double, lr);
  TORCH_ARG(eps_t, eps) = std::make_tuple(1e-30, 1e-3);
  TORCH_ARG(double, clip_threshold) = 1.0;
  TORCH_ARG(double, decay_rate) = -0.8;
  /// 0: no clipping. The optimizer's defaults decide for all groups.
  TORCH_ARG(double, clip_grad_norm) = 0;
  TORCH_ARG(double, clip_grad_value) = 0;
  /// Decoupled, by the learning rate that the parameter gets.
  TORCH_ARG(double, weight_decay) = 0;

 public:
  void check() const;
};
ACCELERATE_ARGUMENTS(AdaLomoOptions, lr, eps, clip_threshold, decay_rate, clip_grad_norm,
                     clip_grad_value, weight_decay)

struct AdaLomoParamState : internal::ParamStateOf<AdaLomoParamState> {
  TORCH_ARG(int64_t, step) = 0;
  /// In full precision. Either the first two or the last one.
  TORCH_ARG(at::Tensor, exp_avg_sq_row);
  TORCH_ARG(at::Tensor, exp_avg_sq_col);
  TORCH_ARG(at::Tensor, exp_avg_sq);
};
ACCELERATE_ARGUMENTS(AdaLomoParamState, step, exp_avg_sq_row, exp_avg_sq_col, exp_avg_sq)

class AdaLomo
    : public internal::OptimizerOf<AdaLomoOptions, AdaLomoParamState, FusedBackwardOptimizer> {
 public:
  using OptimizerOf::OptimizerOf;

 protected:
  Clipping clipping() const override;
  void update(at::Tensor& parameter, at::Tensor grad, double lr,
              const torch::optim::OptimizerOptions& options) override;
};

}  // namespace accelerate::optim
