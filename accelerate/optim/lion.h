/// Lion: each element moves by the sign of a blend of momentum and gradient.
///
/// After Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023:
///     c = beta1 m + (1 - beta1) g;  parameter -= lr (sign(c) + weight_decay parameter)
///     m = beta2 m + (1 - beta2) g
/// Errors: c10::Error in step() naming the parameter whose gradient is sparse; nothing has changed.
/// Threads: one at a time.
/// Mirrors: lion_pytorch.Lion.
#pragma once

#include <tuple>
#include <vector>

#include "accelerate/optim/optimizer_fields.h"

namespace accelerate::optim {

struct LionOptions : internal::OptionsOf<LionOptions> {
  LionOptions(double lr = 1e-4) : lr_(lr) {}  // NOLINT: as LibTorch's options
  using betas_t = std::tuple<double, double>;
  TORCH_ARG(double, lr);
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.99);
  TORCH_ARG(double, weight_decay) = 0;

 public:
  template <typename Self, typename Fn>
  static void for_each_field(Self& self, Fn&& fn) {
    fn("lr", self.lr());
    fn("betas", self.betas());
    fn("weight_decay", self.weight_decay());
  }
};

struct LionParamState : internal::ParamStateOf<LionParamState> {
  TORCH_ARG(at::Tensor, exp_avg);

 public:
  template <typename Self, typename Fn>
  static void for_each_field(Self& self, Fn&& fn) {
    fn("exp_avg", self.exp_avg());
  }
};

class Lion : public torch::optim::Optimizer {
 public:
  explicit Lion(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                LionOptions defaults = {});
  explicit Lion(std::vector<at::Tensor> parameters, LionOptions defaults = {});

  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace accelerate::optim
