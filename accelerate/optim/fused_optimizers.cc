#include "accelerate/optim/fused_optimizers.h"

#include <cmath>
#include <type_traits>
#include <typeinfo>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/rmsprop.h>

#include "accelerate/optim/optimizer_fields.h"
#include "accelerate/runtime/runtime.h"
#include "accelerate/tensors/tensor_memory.h"

namespace accelerate::internal {

FusedBatch* FusedBatches::find(const at::Tensor& parameter, int64_t step) {
  const c10::Device device = parameter.device();
  const at::ScalarType dtype = parameter.scalar_type();
  for (size_t i = used_; i-- > group_begin_;) {
    FusedBatch& batch = batches_[i];
    if (batch.step == step && batch.dtype == dtype && batch.device == device) return &batch;
  }
  const c10::DispatchKey key =
      parameter.key_set().highestBackendKey() == c10::BackendComponent::InvalidBit
          ? c10::DispatchKey::Undefined
          : c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::Dense,
                                                     parameter.key_set().highestBackendKey());
  const bool is_fusable =
      dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf;
  if (!is_fusable || !op_.hasComputedKernelForDispatchKey(key)) return nullptr;
  if (used_ == batches_.size()) {
    batches_.push_back(FusedBatch{.device = device, .dtype = dtype, .step = step});
  }
  FusedBatch& batch = batches_[used_++];
  finish(batch);  // what a step that ended in an error has left
  batch.device = device;
  batch.dtype = dtype;
  batch.step = step;
  return &batch;
}

void FusedBatches::fill_steps(FusedBatch& batch) {
  if (!batch.step_tensor.defined() || batch.step_tensor.device() != batch.device) {
    batch.step_tensor = at::empty({}, at::TensorOptions(batch.device).dtype(at::kFloat));
  }
  batch.step_tensor.fill_(batch.step);
  for (size_t i = 0; i < batch.parameters.list().size(); ++i) batch.steps.add(batch.step_tensor);
}

void FusedBatches::mark_changed(FusedBatch& batch) {
  for (const BorrowedTensors* changed :
       {&batch.parameters, &batch.states[0], &batch.states[1], &batch.states[2]}) {
    for (const at::Tensor& tensor : changed->list()) {
      // Those made in inference mode have no version.
      if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
    }
  }
}

void FusedBatches::finish(FusedBatch& batch) {
  batch.parameters.clear();
  batch.grads.clear();
  for (BorrowedTensors& state : batch.states) state.clear();
  batch.steps.clear();
}

bool same_layout(const at::Tensor& parameter, const at::Tensor& other) {
  if (!other.defined() || other.layout() != at::kStrided || parameter.layout() != at::kStrided ||
      other.scalar_type() != parameter.scalar_type() || other.device() != parameter.device() ||
      other.sizes() != parameter.sizes()) {
    return false;
  }
  if (parameter.is_contiguous() && other.is_contiguous()) return true;
  return parameter.is_non_overlapping_and_dense() && other.strides() == parameter.strides();
}

void warn_of_complex_parameters(const torch::optim::Optimizer& optimizer) {
  const std::type_info& type = typeid(optimizer);
  const bool squares = type == typeid(torch::optim::Adam) || type == typeid(torch::optim::AdamW) ||
                       dynamic_cast<const torch::optim::Adagrad*>(&optimizer) != nullptr ||
                       dynamic_cast<const torch::optim::RMSprop*>(&optimizer) != nullptr;
  if (!squares || !Runtime::is_on_first_rank()) return;
  for (const torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.is_complex()) continue;
      TORCH_WARN("an optimizer has complex parameters, such as one of shape ", parameter.sizes(),
                 ", and LibTorch's Adam, AdamW, Adagrad and RMSprop divide by roots of complex "
                 "squares; accelerate::optim::Adam and AdamW train the real and the imaginary "
                 "parts, as PyTorch does");
      return;
    }
  }
}

at::Tensor call_closure(const torch::optim::Optimizer::LossClosure& closure) {
  if (closure == nullptr) return {};
  at::AutoGradMode enable_grad(true);
  return closure();
}

void check_gradients_are_dense(const char* optimizer,
                               const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  for (size_t group = 0; group < groups.size(); ++group) {
    const std::vector<at::Tensor>& parameters = groups[group].params();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& grad = parameters[i].grad();
      TORCH_CHECK(!grad.defined() || grad.layout() == at::kStrided, optimizer,
                  " does not support sparse gradients: that of parameter ", i, " of group ", group,
                  " is");
    }
  }
}

namespace {

using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

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

struct AdamKind {
  using Options = torch::optim::AdamOptions;
  using State = torch::optim::AdamParamState;
  static constexpr const char* kName = "Adam";
  static constexpr bool kDecoupledDecay = false;
  static constexpr auto kFused = [](const auto&... arguments) { at::_fused_adam_(arguments...); };
};

struct AdamWKind {
  using Options = torch::optim::AdamWOptions;
  using State = torch::optim::AdamWParamState;
  static constexpr const char* kName = "AdamW";
  static constexpr bool kDecoupledDecay = true;
  static constexpr auto kFused = [](const auto&... arguments) { at::_fused_adamw_(arguments...); };
};

template <typename State>
State& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, bool amsgrad) {
  State& state = internal::state_of<State>(optimizer, parameter);
  if (!state.exp_avg().defined()) {
    state.exp_avg(at::zeros_like(parameter));
    state.exp_avg_sq(at::zeros_like(parameter));
  }
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
  const at::Tensor values = as_real(parameter);
  at::Tensor grad = as_real(parameter.grad());
  if (options.weight_decay() != 0) {
    if constexpr (Kind::kDecoupledDecay) {
      values.mul_(1 - options.lr() * options.weight_decay());
    } else {
      grad = grad.add(values, options.weight_decay());
    }
  }
  const double correction1 = 1 - std::pow(beta1, state.step());
  const double correction2 = 1 - std::pow(beta2, state.step());
  const at::Tensor mean = as_real(state.exp_avg());
  at::Tensor square = as_real(state.exp_avg_sq());
  mean.mul_(beta1).add_(grad, 1 - beta1);
  square.mul_(beta2).addcmul_(grad, grad, 1 - beta2);
  if (options.amsgrad()) {
    at::Tensor largest = as_real(state.max_exp_avg_sq());
    at::maximum_out(largest, largest, square);
    square = largest;
  }
  const at::Tensor denominator = square.sqrt().div_(std::sqrt(correction2)).add_(options.eps());
  values.addcdiv_(mean, denominator, -options.lr() / correction1);
}

template <typename Kind>
at::Tensor adam_step(torch::optim::Optimizer& optimizer, FusedBatches& batches,
                     const torch::optim::Optimizer::LossClosure& closure) {
  at::NoGradGuard no_grad;
  at::Tensor loss = call_closure(closure);
  check_gradients_are_dense(Kind::kName, optimizer.param_groups());
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
      Kind::kFused(batch.parameters.list(), batch.grads.list(), batch.states[0].list(),
                   batch.states[1].list(), batch.states[2].list(), batch.steps.list(), options.lr(),
                   beta1, beta2, options.weight_decay(), options.eps(), options.amsgrad(),
                   /*maximize=*/false);
    });
  }
  return loss;
}

at::Tensor sgd_step(torch::optim::Optimizer& optimizer, FusedBatches& batches,
                    const torch::optim::Optimizer::LossClosure& closure) {
  at::NoGradGuard no_grad;
  at::Tensor loss = call_closure(closure);
  batches.begin_step();
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
    const auto& options = static_cast<const SGDOptions&>(group.options());
    const bool has_momentum = options.momentum() != 0;
    batches.begin_group();
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& grad = parameter.grad();
      if (!grad.defined()) continue;
      at::Tensor* buffer = nullptr;
      if (has_momentum) {
        buffer = &internal::state_of<SGDParamState>(optimizer, parameter).momentum_buffer();
      }
      const bool is_first = buffer != nullptr && !buffer->defined();
      // LibTorch's CPU kernel leaves out whole vectors of parameters in half precision, and reads
      // their momentum wrongly (pytorch issue 191763).
      const bool fits = (parameter.element_size() >= 4 || parameter.is_cuda()) &&
                        same_layout(parameter, grad) &&
                        (buffer == nullptr || is_first || same_layout(parameter, *buffer));
      FusedBatch* batch = fits ? batches.find(parameter, is_first) : nullptr;
      if (batch == nullptr) {
        step_one(parameter, buffer, options);
        continue;
      }
      if (is_first) *buffer = at::empty_like(parameter);
      batch->parameters.add(parameter);
      batch->grads.add(grad);
      if (has_momentum) batch->states[0].add(*buffer);
    }
    batches.run_group([&options](FusedBatch& batch) {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      at::_fused_sgd_(batch.parameters.list(), batch.grads.list(), batch.states[0].list(),
                      options.weight_decay(), options.momentum(), options.lr(), options.dampening(),
                      options.nesterov(), /*maximize=*/false,
                      /*is_first_step=*/batch.step != 0);
    });
  }
  return loss;
}

}  // namespace

template <typename Base, typename Options>
c10::OperatorHandle Fused<Base, Options>::kernel() {
  const char* const name = std::is_same_v<Base, torch::optim::SGD>    ? "aten::_fused_sgd_"
                           : std::is_same_v<Base, torch::optim::Adam> ? "aten::_fused_adam_"
                                                                      : "aten::_fused_adamw_";
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

template <typename Base, typename Options>
at::Tensor Fused<Base, Options>::step(torch::optim::Optimizer::LossClosure closure) {
  if constexpr (std::is_same_v<Base, torch::optim::SGD>) {
    return sgd_step(*this, batches_, closure);
  } else {
    using Kind = std::conditional_t<std::is_same_v<Base, torch::optim::Adam>, AdamKind, AdamWKind>;
    return adam_step<Kind>(*this, batches_, closure);
  }
}

template class Fused<torch::optim::SGD, SGDOptions>;
template class Fused<torch::optim::Adam, torch::optim::AdamOptions>;
template class Fused<torch::optim::AdamW, torch::optim::AdamWOptions>;

}  // namespace accelerate::internal
