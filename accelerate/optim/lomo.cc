#include "accelerate/optim/lomo.h"

#include <memory>
#include <utility>

namespace accelerate::optim {
namespace {

// There is none, but archives have a place for it.
struct LomoParamState : internal::ParamStateOf<LomoParamState> {
  template <typename Self, typename Fn>
  static void for_each_field(Self&, Fn&&) {}
};

}  // namespace

Lomo::Lomo(const std::vector<torch::optim::OptimizerParamGroup>& param_groups, LomoOptions defaults)
    : FusedBackwardOptimizer(param_groups, std::make_unique<LomoOptions>(defaults)) {
  TORCH_CHECK_VALUE(defaults.lr() >= 0, "Invalid learning rate: ", defaults.lr());
  TORCH_CHECK_VALUE(defaults.weight_decay() >= 0,
                    "Invalid weight_decay value: ", defaults.weight_decay());
  TORCH_CHECK_VALUE(defaults.clip_grad_norm() >= 0,
                    "Invalid clip_grad_norm value: ", defaults.clip_grad_norm());
  TORCH_CHECK_VALUE(defaults.clip_grad_value() >= 0,
                    "Invalid clip_grad_value value: ", defaults.clip_grad_value());
}

Lomo::Lomo(std::vector<at::Tensor> parameters, LomoOptions defaults)
    : Lomo({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

FusedBackwardOptimizer::Clipping Lomo::clipping() const {
  const auto& options = static_cast<const LomoOptions&>(defaults());
  return {.norm = options.clip_grad_norm(), .value = options.clip_grad_value()};
}

void Lomo::update(at::Tensor& parameter, at::Tensor grad, double lr,
                  const torch::optim::OptimizerOptions& options) {
  const double weight_decay = static_cast<const LomoOptions&>(options).weight_decay();
  if (weight_decay != 0) parameter.mul_(1 - lr * weight_decay);
  parameter.add_(grad, -lr);
}

void Lomo::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<LomoParamState, LomoOptions>(archive, *this);
}

void Lomo::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<LomoParamState, LomoOptions>(archive, *this);
}

}  // namespace accelerate::optim
