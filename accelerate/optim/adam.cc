#include "accelerate/optim/adam.h"

#include <cmath>
#include <memory>
#include <tuple>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros_like.h>

namespace accelerate::optim {
namespace {

using internal::FusedBatch;
using internal::FusedBatches;
using internal::same_layout;

struct AdamKind {
  using Options = torch::optim::AdamOptions;
  using State = torch::optim::AdamParamState;
  static constexpr const char* kName = "Adam";
  static constexpr const char* kKernel = "aten::_fused_adam_";
  static constexpr bool kDecoupledDecay = false;
  template <typename... Args>
  static void fused(Args&&... args) {
    at::_fused_adam_(std::forward<Args>(args)...);
  }
};

struct AdamWKind {
  using Options = torch::optim::AdamWOptions;
  using State = torch::optim::AdamWParamState;
  static constexpr const char* kName = "AdamW";
  static constexpr const char* kKernel = "aten::_fused_adamw_";
  static constexpr bool kDecoupledDecay = true;
  template <typename... Args>
  static void fused(Args&&... args) {
    at::_fused_adamw_(std::forward<Args>(args)...);
  }
};

template <typename Kind>
FusedBatches make_batches() {
  return FusedBatches(c10::Dispatcher::singleton().findSchemaOrThrow(Kind::kKernel, ""));
}

template <typename State>
State& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, bool amsgrad) {
  auto& slot = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (slot == nullptr) {
    auto state = std::make_unique<State>();
    state->step(0);
    state->exp_avg(at::zeros_like(parameter));
    state->exp_avg_sq(at::zeros_like(parameter));
    slot = std::move(state);
  }
  State& state = static_cast<State&>(*slot);
  if (amsgrad && !state.max_exp_avg_sq().defined()) {
    state.max_exp_avg_sq(at::zeros_like(parameter));
  }
  return state;
}

// torch::optim's arithmetic, of which the fused kernel's is a rearrangement.
template <typename Kind>
void step_one(const at::Tensor& parameter, typename Kind::State& state,
              const typename Kind::Options& options) {
  const auto [beta1, beta2] = options.betas();
  at::Tensor grad = parameter.grad();
  if (options.weight_decay() != 0) {
    if constexpr (Kind::kDecoupledDecay) {
      parameter.mul_(1 - options.lr() * options.weight_decay());
    } else {
      grad = grad.add(parameter, options.weight_decay());
    }
  }
  const double correction1 = 1 - std::pow(beta1, state.step());
  const double correction2 = 1 - std::pow(beta2, state.step());
  state.exp_avg().mul_(beta1).add_(grad, 1 - beta1);
  state.exp_avg_sq().mul_(beta2).addcmul_(grad, grad, 1 - beta2);
  at::Tensor square = state.exp_avg_sq();
  if (options.amsgrad()) {
    at::maximum_out(state.max_exp_avg_sq(), state.max_exp_avg_sq(), square);
    square = state.max_exp_avg_sq();
  }
  const at::Tensor denominator = square.sqrt().div_(std::sqrt(correction2)).add_(options.eps());
  parameter.addcdiv_(state.exp_avg(), denominator, -options.lr() / correction1);
}

template <typename Kind>
at::Tensor adam_step(torch::optim::Optimizer& optimizer, FusedBatches& batches,
                     const torch::optim::Optimizer::LossClosure& closure) {
  at::NoGradGuard no_grad;
  at::Tensor loss = internal::call_closure(closure);
  internal::check_gradients_are_dense(Kind::kName, optimizer.param_groups());
  batches.begin_step();
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    const auto& options = static_cast<const typename Kind::Options&>(group.options());
    const bool amsgrad = options.amsgrad();
    batches.begin_group();
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& grad = parameter.grad();
      if (!grad.defined()) continue;
      auto& state = state_of<typename Kind::State>(optimizer, parameter, amsgrad);
      state.step(state.step() + 1);
      const bool fits = same_layout(parameter, grad) && same_layout(parameter, state.exp_avg()) &&
                        same_layout(parameter, state.exp_avg_sq()) &&
                        (!amsgrad || same_layout(parameter, state.max_exp_avg_sq()));
      FusedBatch* batch = fits ? batches.find(parameter, state.step()) : nullptr;
      if (batch == nullptr) {
        step_one<Kind>(parameter, state, options);
        continue;
      }
      batch->parameters.add(parameter);
      batch->grads.add(grad);
      batch->states[0].add(state.exp_avg());
      batch->states[1].add(state.exp_avg_sq());
      if (amsgrad) batch->states[2].add(state.max_exp_avg_sq());
    }
    batches.run_group([&options](FusedBatch& batch) {
      FusedBatches::fill_steps(batch);
      const auto [beta1, beta2] = options.betas();
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      Kind::fused(batch.parameters.list(), batch.grads.list(), batch.states[0].list(),
                  batch.states[1].list(), batch.states[2].list(), batch.steps.list(), options.lr(),
                  beta1, beta2, options.weight_decay(), options.eps(), options.amsgrad(),
                  /*maximize=*/false);
    });
  }
  return loss;
}

}  // namespace

Adam::Adam(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
           torch::optim::AdamOptions defaults)
    : torch::optim::Adam(param_groups, std::move(defaults)), batches_(make_batches<AdamKind>()) {}

Adam::Adam(std::vector<at::Tensor> parameters, torch::optim::AdamOptions defaults)
    : torch::optim::Adam(std::move(parameters), std::move(defaults)),
      batches_(make_batches<AdamKind>()) {}

at::Tensor Adam::step(LossClosure closure) { return adam_step<AdamKind>(*this, batches_, closure); }

AdamW::AdamW(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
             torch::optim::AdamWOptions defaults)
    : torch::optim::AdamW(param_groups, std::move(defaults)), batches_(make_batches<AdamWKind>()) {}

AdamW::AdamW(std::vector<at::Tensor> parameters, torch::optim::AdamWOptions defaults)
    : torch::optim::AdamW(std::move(parameters), std::move(defaults)),
      batches_(make_batches<AdamWKind>()) {}

at::Tensor AdamW::step(LossClosure closure) {
  return adam_step<AdamWKind>(*this, batches_, closure);
}

}  // namespace accelerate::optim
