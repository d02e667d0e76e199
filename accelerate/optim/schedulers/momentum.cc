#include "accelerate/optim/schedulers/momentum.h"

#include <algorithm>
#include <tuple>

#include <c10/util/Exception.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace accelerate::optim {
namespace {

template <typename Adam>
bool set_beta1(torch::optim::OptimizerOptions& options, double beta1) {
  auto* adam = dynamic_cast<Adam*>(&options);
  if (adam != nullptr) adam->betas(std::tuple(beta1, std::get<1>(adam->betas())));
  return adam != nullptr;
}

template <typename Sgd>
bool set_momentum(torch::optim::OptimizerOptions& options, double momentum) {
  auto* sgd = dynamic_cast<Sgd*>(&options);
  if (sgd != nullptr) sgd->momentum(momentum);
  return sgd != nullptr;
}

bool set_own(torch::optim::OptimizerOptions& options, double momentum) {
  auto* own = dynamic_cast<HasMomentum*>(&options);
  if (own != nullptr) own->set_momentum_value(momentum);
  return own != nullptr;
}

template <typename... Kinds>
bool is_any(const torch::optim::OptimizerOptions& options) {
  return ((dynamic_cast<const Kinds*>(&options) != nullptr) || ...);
}

}  // namespace

bool has_momentum(const torch::optim::OptimizerOptions& options) {
  using namespace torch::optim;
  return is_any<SGDOptions, AdamWOptions, AdamOptions, RMSpropOptions, HasMomentum>(options);
}

void set_momenta(torch::optim::Optimizer& optimizer, const std::vector<double>& momenta) {
  using namespace torch::optim;
  auto& groups = optimizer.param_groups();
  const size_t count = std::min(groups.size(), momenta.size());
  for (size_t i = 0; i < count; ++i) {
    TORCH_CHECK_VALUE(has_momentum(groups[i].options()),
                      "cycle_momentum: the optimizer has neither momentum nor betas; set "
                      "cycle_momentum to false");
  }
  for (size_t i = 0; i < count; ++i) {
    OptimizerOptions& options = groups[i].options();
    const double momentum = momenta[i];
    static_cast<void>(
        set_momentum<SGDOptions>(options, momentum) || set_beta1<AdamWOptions>(options, momentum) ||
        set_beta1<AdamOptions>(options, momentum) ||
        set_momentum<RMSpropOptions>(options, momentum) || set_own(options, momentum));
  }
}

}  // namespace accelerate::optim
