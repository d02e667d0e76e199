#include "accelerate/optim/sgd.h"

#include <memory>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>

namespace accelerate::optim {
namespace {

using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

c10::OperatorHandle fused_kernel() {
  return c10::Dispatcher::singleton().findSchemaOrThrow("aten::_fused_sgd_", "");
}

// LibTorch's CPU kernel leaves out whole vectors of parameters in half precision, and reads their
// momentum wrongly (pytorch issue 191763).
bool kernel_is_right(const at::Tensor& parameter) {
  return parameter.element_size() >= 4 || parameter.is_cuda();
}

// torch::optim::SGD's arithmetic. An undefined buffer is the first step's.
void step_one(const at::Tensor& parameter, at::Tensor* buffer, const SGDOptions& options) {
  at::Tensor change = parameter.grad();
  if (options.weight_decay() != 0) change = change.add(parameter, options.weight_decay());
  if (buffer != nullptr) {
    if (!buffer->defined()) {
      *buffer = change.clone();
    } else {
      buffer->mul_(options.momentum()).add_(change, 1 - options.dampening());
    }
    change = options.nesterov() ? change.add(*buffer, options.momentum()) : *buffer;
  }
  parameter.add_(change, -options.lr());
}

}  // namespace

SGD::SGD(const std::vector<torch::optim::OptimizerParamGroup>& param_groups, SGDOptions defaults)
    : torch::optim::SGD(param_groups, std::move(defaults)), batches_(fused_kernel()) {}

SGD::SGD(std::vector<at::Tensor> parameters, SGDOptions defaults)
    : torch::optim::SGD(std::move(parameters), std::move(defaults)), batches_(fused_kernel()) {}

at::Tensor SGD::step(LossClosure closure) {
  at::NoGradGuard no_grad;
  at::Tensor loss = internal::call_closure(closure);
  batches_.begin_step();
  for (torch::optim::OptimizerParamGroup& group : param_groups_) {
    const auto& options = static_cast<const SGDOptions&>(group.options());
    const bool has_momentum = options.momentum() != 0;
    batches_.begin_group();
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& grad = parameter.grad();
      if (!grad.defined()) continue;
      at::Tensor* buffer = nullptr;
      if (has_momentum) {
        auto& state = state_[parameter.unsafeGetTensorImpl()];
        if (state == nullptr) state = std::make_unique<SGDParamState>();
        buffer = &static_cast<SGDParamState&>(*state).momentum_buffer();
      }
      const bool is_first = buffer != nullptr && !buffer->defined();
      const bool fits =
          kernel_is_right(parameter) && internal::same_layout(parameter, grad) &&
          (buffer == nullptr || is_first || internal::same_layout(parameter, *buffer));
      internal::FusedBatch* batch = fits ? batches_.find(parameter, is_first) : nullptr;
      if (batch == nullptr) {
        step_one(parameter, buffer, options);
        continue;
      }
      if (is_first) *buffer = at::empty_like(parameter);
      batch->parameters.add(parameter);
      batch->grads.add(grad);
      if (has_momentum) batch->states[0].add(*buffer);
    }
    batches_.run_group([&options](internal::FusedBatch& batch) {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      at::_fused_sgd_(batch.parameters.list(), batch.grads.list(), batch.states[0].list(),
                      options.weight_decay(), options.momentum(), options.lr(), options.dampening(),
                      options.nesterov(), /*maximize=*/false,
                      /*is_first_step=*/batch.step != 0);
    });
  }
  return loss;
}

}  // namespace accelerate::optim
