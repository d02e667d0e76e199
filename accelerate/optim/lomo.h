/// LOMO: stochastic gradient descent fused with the backward pass, without any state.
///
/// After Lv et al., "Full Parameter Fine-tuning for Large Language Models with Limited Resources",
/// 2023. See fused_backward_optimizer.h for how it is used.
/// Mirrors: lomo_optim.Lomo.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerate/optim/fused_backward_optimizer.h"
#include "accelerate/optim/optimizer_fields.h"

namespace accelerate::optim {

struct LomoOptions : internal::OptionsOf<LomoOptions> {
  LomoOptions(double lr = 1e-3) : lr_(lr) {}  // NOLINT: as LibTorch's options
  TORCH_ARG(double, lr);
  /// 0: no clipping. The optimizer's defaults decide for all groups.
  TORCH_ARG(double, clip_grad_norm) = 0;
  TORCH_ARG(double, clip_grad_value) = 0;
  /// Decoupled: each step multiplies the parameter by 1 - lr * weight_decay.
  TORCH_ARG(double, weight_decay) = 0;

 public:
  template <typename Self, typename Fn>
  static void for_each_field(Self& self, Fn&& fn) {
    fn("lr", self.lr());
    fn("clip_grad_norm", self.clip_grad_norm());
    fn("clip_grad_value", self.clip_grad_value());
    fn("weight_decay", self.weight_decay());
  }
};

class Lomo : public FusedBackwardOptimizer {
 public:
  explicit Lomo(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                LomoOptions defaults = {});
  explicit Lomo(std::vector<at::Tensor> parameters, LomoOptions defaults = {});

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  Clipping clipping() const override;
  void update(at::Tensor& parameter, at::Tensor grad, double lr,
              const torch::optim::OptimizerOptions& options) override;
};

}  // namespace accelerate::optim
