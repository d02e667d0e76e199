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
/// See fused_backward_optimizer.h for how it is used.
/// Mirrors: lomo_optim.AdaLomo.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "accelerate/optim/fused_backward_optimizer.h"
#include "accelerate/optim/optimizer_fields.h"

namespace accelerate::optim {

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
  template <typename Self, typename Fn>
  static void for_each_field(Self& self, Fn&& fn) {
    fn("lr", self.lr());
    fn("eps", self.eps());
    fn("clip_threshold", self.clip_threshold());
    fn("decay_rate", self.decay_rate());
    fn("clip_grad_norm", self.clip_grad_norm());
    fn("clip_grad_value", self.clip_grad_value());
    fn("weight_decay", self.weight_decay());
  }
};

struct AdaLomoParamState : internal::ParamStateOf<AdaLomoParamState> {
  TORCH_ARG(int64_t, step) = 0;
  /// In full precision. Either the first two or the last one.
  TORCH_ARG(at::Tensor, exp_avg_sq_row);
  TORCH_ARG(at::Tensor, exp_avg_sq_col);
  TORCH_ARG(at::Tensor, exp_avg_sq);

 public:
  template <typename Self, typename Fn>
  static void for_each_field(Self& self, Fn&& fn) {
    fn("step", self.step());
    fn("exp_avg_sq_row", self.exp_avg_sq_row());
    fn("exp_avg_sq_col", self.exp_avg_sq_col());
    fn("exp_avg_sq", self.exp_avg_sq());
  }
};

class AdaLomo : public FusedBackwardOptimizer {
 public:
  explicit AdaLomo(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                   AdaLomoOptions defaults = {});
  explicit AdaLomo(std::vector<at::Tensor> parameters, AdaLomoOptions defaults = {});

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  Clipping clipping() const override;
  void update(at::Tensor& parameter, at::Tensor grad, double lr,
              const torch::optim::OptimizerOptions& options) override;
};

}  // namespace accelerate::optim
