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
/// Errors: c10::Error in step() after eval(), saying to call train(), and naming the parameter
/// whose
///         gradient is sparse; nothing has changed.
/// Threads: one at a time.
/// Mirrors: schedulefree.AdamWScheduleFree.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "accelerate/optim/optimizer_fields.h"
#include "accelerate/optim/train_mode.h"

namespace accelerate::optim {

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
  template <typename Self, typename Fn>
  static void for_each_field(Self& self, Fn&& fn) {
    fn("lr", self.lr());
    fn("betas", self.betas());
    fn("eps", self.eps());
    fn("weight_decay", self.weight_decay());
    fn("warmup_steps", self.warmup_steps());
    fn("r", self.r());
    fn("weight_lr_power", self.weight_lr_power());
    fn("train_mode", self.train_mode());
    fn("k", self.k());
    fn("weight_sum", self.weight_sum());
    fn("lr_max", self.lr_max());
  }
};

struct ScheduleFreeAdamWParamState : internal::ParamStateOf<ScheduleFreeAdamWParamState> {
  TORCH_ARG(at::Tensor, z);
  TORCH_ARG(at::Tensor, exp_avg_sq);

 public:
  template <typename Self, typename Fn>
  static void for_each_field(Self& self, Fn&& fn) {
    fn("z", self.z());
    fn("exp_avg_sq", self.exp_avg_sq());
  }
};

class ScheduleFreeAdamW : public torch::optim::Optimizer, public TrainMode {
 public:
  explicit ScheduleFreeAdamW(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                             ScheduleFreeAdamWOptions defaults = {});
  explicit ScheduleFreeAdamW(std::vector<at::Tensor> parameters,
                             ScheduleFreeAdamWOptions defaults = {});

  at::Tensor step(LossClosure closure = nullptr) override;
  void train() override;
  void eval() override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void set_train_mode(bool train_mode);
};

}  // namespace accelerate::optim
