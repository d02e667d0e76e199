/// Optimizers that update all parameters with LibTorch's foreach operators: Lion, Lamb and
/// ScheduleFreeAdamW; and Adagrad, which updates one after the other as LibTorch's does.
///
/// Errors: c10::Error in step() naming the parameter whose gradient is sparse; nothing has changed.
/// Threads: one at a time.
#pragma once

#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/adagrad.h>

#include "accelerate/optim/optimizer_fields.h"

namespace accelerate::optim {

/// An optimizer whose parameters hold other values while training than those to evaluate.
/// AcceleratedOptimizer forwards train() and eval() to it.
class TrainMode {
 public:
  virtual ~TrainMode() = default;
  /// Before training steps. Does nothing if that is so already, as does eval.
  virtual void train() = 0;
  /// Before the model is evaluated or saved.
  virtual void eval() = 0;
};

/// Lion: each element moves by the sign of a blend of momentum and gradient.
///
/// After Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023:
///     c = beta1 m + (1 - beta1) g;  parameter -= lr (sign(c) + weight_decay parameter)
///     m = beta2 m + (1 - beta2) g
/// Mirrors: lion_pytorch.Lion.
struct LionOptions : internal::BetasOptionsOf<LionOptions> {
  LionOptions(double lr = 1e-4) : lr_(lr) {}  // NOLINT: as LibTorch's options
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(double, lr);
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.99);
  TORCH_ARG(double, weight_decay) = 0;

 public:
  void check() const;
};
ACCELERATE_ARGUMENTS(LionOptions, lr, betas, weight_decay)

struct LionParamState : internal::ParamStateOf<LionParamState> {
  TORCH_ARG(at::Tensor, exp_avg);
};
ACCELERATE_ARGUMENTS(LionParamState, exp_avg)

class Lion : public internal::OptimizerOf<LionOptions, LionParamState> {
 public:
  using OptimizerOf::OptimizerOf;

  at::Tensor step(LossClosure closure = nullptr) override;
};

/// torch::optim::Adagrad, whose state begins with a parameter's first step, not with the
/// construction: parameters may be without memory until then, or become shards.
///
/// Options, state and archives are the same, so a checkpoint of either continues with the other.
class Adagrad : public torch::optim::Adagrad {
 public:
  explicit Adagrad(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                   torch::optim::AdagradOptions defaults = {});
  explicit Adagrad(std::vector<at::Tensor> parameters, torch::optim::AdagradOptions defaults = {});

  at::Tensor step(LossClosure closure = nullptr) override;
};

/// LAMB: Adam whose step for each parameter tensor is as long as the tensor itself, times the
/// learning rate. For large batches.
///
/// After You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
/// 2019, with the identity for its function phi. With m and v as in Adam, bias-corrected:
///     u = m / (sqrt(v) + eps) + weight_decay parameter
///     parameter -= lr (|parameter| / |u|) u
/// where the ratio is within [min_coeff, max_coeff], and 1 if one of the norms is zero.
/// Mirrors: apex.optimizers.FusedLAMB with use_nvlamb, without its clipping; see clip_grad.h. The
///          limits of the ratio are those of DeepSpeed's FusedLamb.
struct LambOptions : internal::BetasOptionsOf<LambOptions> {
  LambOptions(double lr = 1e-3) : lr_(lr) {}  // NOLINT: as LibTorch's options
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(double, lr);
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0.01;
  /// Whether m and v are bias-corrected.
  TORCH_ARG(bool, bias_correction) = true;
  TORCH_ARG(double, min_coeff) = 0;
  TORCH_ARG(double, max_coeff) = std::numeric_limits<double>::infinity();

 public:
  void check() const;
};
ACCELERATE_ARGUMENTS(LambOptions, lr, betas, eps, weight_decay, bias_correction, min_coeff,
                     max_coeff)

struct LambParamState : internal::ParamStateOf<LambParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, exp_avg);
  TORCH_ARG(at::Tensor, exp_avg_sq);
};
ACCELERATE_ARGUMENTS(LambParamState, step, exp_avg, exp_avg_sq)

class Lamb : public internal::OptimizerOf<LambOptions, LambParamState> {
 public:
  using OptimizerOf::OptimizerOf;

  at::Tensor step(LossClosure closure = nullptr) override;
};

/// AdamW that needs no learning-rate schedule: it averages over the steps taken.
///
/// After Defazio et al., "The Road Less Scheduled", 2024. Three sequences: z takes the steps, x is
/// the average of z that is to be evaluated, and gradients are taken at y = (1 - beta1) z + beta1
/// x:
///     z -= lr u,  u = g(y) / (sqrt(v / (1 - beta2^k)) + eps) + weight_decay y
///     x = (1 - c) x + c z,  c = w_k / (w_1 + ... + w_k),  w_k = k^r lr_max^weight_lr_power
/// with lr rising linearly in the first `warmup_steps` steps. While training the parameters hold y,
/// after eval() they hold x; z is state, and x follows from y and z.
///
///     optimizer.train();  for (...) { ... optimizer.step(); }   optimizer.eval();  evaluate();
///
/// It begins in training mode. A checkpoint remembers the mode that it was made in.
/// Errors: c10::Error in step() after eval(), saying to call train().
/// Mirrors: schedulefree.AdamWScheduleFree.
struct ScheduleFreeAdamWOptions : internal::OptionsOf<ScheduleFreeAdamWOptions> {
  ScheduleFreeAdamWOptions(double lr = 2.5e-3) : lr_(lr) {}  // NOLINT: as LibTorch's options
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(double, lr);
  /// The first must not be zero.
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(int64_t, warmup_steps) = 0;
  TORCH_ARG(double, r) = 0;
  TORCH_ARG(double, weight_lr_power) = 2;
  // Where the group stands.
  TORCH_ARG(bool, train_mode) = true;
  TORCH_ARG(int64_t, k) = 0;
  TORCH_ARG(double, weight_sum) = 0;
  TORCH_ARG(double, lr_max) = 0;

 public:
  void check() const;
};
ACCELERATE_ARGUMENTS(ScheduleFreeAdamWOptions, lr, betas, eps, weight_decay, warmup_steps, r,
                     weight_lr_power, train_mode, k, weight_sum, lr_max)

struct ScheduleFreeAdamWParamState : internal::ParamStateOf<ScheduleFreeAdamWParamState> {
  TORCH_ARG(at::Tensor, z);
  TORCH_ARG(at::Tensor, exp_avg_sq);
};
ACCELERATE_ARGUMENTS(ScheduleFreeAdamWParamState, z, exp_avg_sq)

class ScheduleFreeAdamW
    : public internal::OptimizerOf<ScheduleFreeAdamWOptions, ScheduleFreeAdamWParamState>,
      public TrainMode {
 public:
  using OptimizerOf::OptimizerOf;

  at::Tensor step(LossClosure closure = nullptr) override;
  void train() override;
  void eval() override;

 private:
  void set_train_mode(bool train_mode);
};

}  // namespace accelerate::optim
