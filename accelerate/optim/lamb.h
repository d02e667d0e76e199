/// LAMB: Adam whose step for each parameter tensor is as long as the tensor itself, times the
/// learning rate. For large batches.
///
/// After You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes",
/// 2019, with the identity for its function phi. With m and v as in Adam, bias-corrected:
///     u = m / (sqrt(v) + eps) + weight_decay parameter
///     parameter -= lr (|parameter| / |u|) u
/// where the ratio is 1 if one of the norms is zero.
/// Errors: c10::Error in step() naming the parameter whose gradient is sparse; nothing has changed.
/// Threads: one at a time.
/// Mirrors: apex.optimizers.FusedLAMB with use_nvlamb, without its clipping; see clip_grad.h.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "accelerate/optim/optimizer_fields.h"

namespace accelerate::optim {

struct LambOptions : internal::OptionsOf<LambOptions> {
  LambOptions(double lr = 1e-3) : lr_(lr) {}  // NOLINT: as LibTorch's options
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(double, lr);
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0.01;

 public:
  template <typename Self, typename Fn>
  static void for_each_field(Self& self, Fn&& fn) {
    fn("lr", self.lr());
    fn("betas", self.betas());
    fn("eps", self.eps());
    fn("weight_decay", self.weight_decay());
  }
};

struct LambParamState : internal::ParamStateOf<LambParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, exp_avg);
  TORCH_ARG(at::Tensor, exp_avg_sq);

 public:
  template <typename Self, typename Fn>
  static void for_each_field(Self& self, Fn&& fn) {
    fn("step", self.step());
    fn("exp_avg", self.exp_avg());
    fn("exp_avg_sq", self.exp_avg_sq());
  }
};

class Lamb : public torch::optim::Optimizer {
 public:
  explicit Lamb(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                LambOptions defaults = {});
  explicit Lamb(std::vector<at::Tensor> parameters, LambOptions defaults = {});

  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace accelerate::optim
