#include "accelerate/optim/adalomo.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace accelerate::optim {
namespace {

at::Tensor rms(const at::Tensor& tensor) { return tensor.square().mean().sqrt_(); }

void blend(at::Tensor& average, const at::Tensor& now, double keep) {
  if (!average.defined()) average = at::zeros_like(now);
  average.mul_(keep).add_(now, 1 - keep);
}

// The gradient over the root of its second moment.
at::Tensor scaled(const at::Tensor& grad, AdaLomoParamState& state, double keep, double eps) {
  const at::Tensor square = grad.square().add_(eps);
  if (grad.dim() < 2) {
    blend(state.exp_avg_sq(), square, keep);
    return state.exp_avg_sq().rsqrt().mul_(grad);
  }
  at::Tensor& row = state.exp_avg_sq_row();
  at::Tensor& column = state.exp_avg_sq_col();
  blend(row, square.mean(-1), keep);
  blend(column, square.mean(-2), keep);
  const at::Tensor of_rows = row.div(row.mean(-1, /*keepdim=*/true)).rsqrt_().unsqueeze(-1);
  return of_rows.mul(column.rsqrt().unsqueeze(-2)).mul_(grad);
}

}  // namespace

AdaLomo::AdaLomo(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                 AdaLomoOptions defaults)
    : FusedBackwardOptimizer(param_groups, std::make_unique<AdaLomoOptions>(defaults)) {
  TORCH_CHECK_VALUE(defaults.lr() >= 0, "Invalid learning rate: ", defaults.lr());
  TORCH_CHECK_VALUE(defaults.weight_decay() >= 0,
                    "Invalid weight_decay value: ", defaults.weight_decay());
  TORCH_CHECK_VALUE(defaults.clip_threshold() > 0,
                    "Invalid clip_threshold value: ", defaults.clip_threshold());
  TORCH_CHECK_VALUE(defaults.decay_rate() <= 0,
                    "Invalid decay_rate value: ", defaults.decay_rate());
  TORCH_CHECK_VALUE(defaults.clip_grad_norm() >= 0,
                    "Invalid clip_grad_norm value: ", defaults.clip_grad_norm());
  TORCH_CHECK_VALUE(defaults.clip_grad_value() >= 0,
                    "Invalid clip_grad_value value: ", defaults.clip_grad_value());
}

AdaLomo::AdaLomo(std::vector<at::Tensor> parameters, AdaLomoOptions defaults)
    : AdaLomo({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

FusedBackwardOptimizer::Clipping AdaLomo::clipping() const {
  const auto& options = static_cast<const AdaLomoOptions&>(defaults());
  return {.norm = options.clip_grad_norm(), .value = options.clip_grad_value()};
}

void AdaLomo::update(at::Tensor& parameter, at::Tensor grad, double lr,
                     const torch::optim::OptimizerOptions& base_options) {
  if (parameter.numel() == 0) return;
  const auto& options = static_cast<const AdaLomoOptions&>(base_options);
  auto& state = internal::state_of<AdaLomoParamState>(*this, parameter);
  state.step(state.step() + 1);
  const double keep = 1 - std::pow(static_cast<double>(state.step()), options.decay_rate());
  const auto [eps_square, eps_scale] = options.eps();
  const bool is_double = parameter.scalar_type() == at::kDouble;
  const at::ScalarType wide = is_double ? at::kDouble : at::kFloat;
  at::Tensor change = scaled(grad.to(wide), state, keep, eps_square);
  change.div_(rms(change).div_(options.clip_threshold()).clamp_min_(1.0));
  const at::Tensor value = parameter.to(wide);
  // Parts of the step stay on the device.
  const at::Tensor rate = rms(value).clamp_min_(eps_scale).mul_(lr);
  change.mul_(rate);
  if (options.weight_decay() != 0) change.add_(value * rate, options.weight_decay());
  parameter.copy_(value - change);
}

void AdaLomo::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<AdaLomoParamState, AdaLomoOptions>(archive, *this);
}

void AdaLomo::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<AdaLomoParamState, AdaLomoOptions>(archive, *this);
}

}  // namespace accelerate::optim
