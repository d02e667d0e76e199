#include "accelerate/parallel/pipeline/late_gradients.h"

#include <map>
#include <mutex>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace accelerate {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What backward passes leave out. It may be on the thread of a device.
struct LateGradients::Queue final : torch::CustomClassHolder {
  struct Late {
    at::Tensor weight;
    at::Tensor input;
    at::Tensor gradient;  // of the output
  };

  std::mutex mutex;
  std::optional<Key> current;  // nothing: nothing is left out
  std::map<Key, std::vector<Late>> late;
};

namespace {

at::Tensor rows_of(const at::Tensor& tensor) { return tensor.reshape({-1, tensor.size(-1)}); }

at::Tensor weight_gradient(const at::Tensor& weight, const at::Tensor& input,
                           const at::Tensor& gradient) {
  return at::mm(rows_of(gradient).t(), rows_of(input).to(gradient.scalar_type()))
      .to(weight.scalar_type());
}

}  // namespace

struct LateGradients::Product : torch::autograd::Function<LateGradients::Product> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            const c10::intrusive_ptr<Queue>& queue) {
    const OperatorModeScope none{OperatorHandlers()};
    context->save_for_backward({input, weight});
    context->saved_data["queue"] = c10::IValue::make_capsule(queue);
    if (bias) context->saved_data["bias"] = static_cast<int64_t>(bias->scalar_type());
    const at::Tensor output = at::linear(input, weight, bias);
    // Not a view, which autograd would keep callers from writing to.
    return at::_unsafe_view(output, output.sizes());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "a stage whose weights' gradients come late has no second derivative");
    const OperatorModeScope none{OperatorHandlers()};
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &gradient = gradients[0];
    at::Tensor of_input, of_weight, of_bias;
    if (context->needs_input_grad(0)) {
      of_input = at::matmul(gradient, weight.to(gradient.scalar_type())).to(input.scalar_type());
    }
    if (context->needs_input_grad(1)) {
      const auto queue =
          c10::static_intrusive_pointer_cast<Queue>(context->saved_data.at("queue").toCapsule());
      const std::lock_guard lock(queue->mutex);
      if (queue->current) {
        queue->late[*queue->current].push_back({weight, input, gradient});
      } else {
        of_weight = weight_gradient(weight, input, gradient);
      }
    }
    const auto bias = context->saved_data.find("bias");
    if (bias != context->saved_data.end() && context->needs_input_grad(2)) {
      of_bias = rows_of(gradient).sum(0).to(static_cast<at::ScalarType>(bias->second.toInt()));
    }
    return {of_input, of_weight, of_bias, at::Tensor()};
  }
};

LateGradients::LateGradients() : queue_(c10::make_intrusive<Queue>()) {}

LateGradients::~LateGradients() = default;

void LateGradients::begin(const Key& key) {
  const std::lock_guard lock(queue_->mutex);
  queue_->current = key;
}

void LateGradients::end() {
  const std::lock_guard lock(queue_->mutex);
  queue_->current.reset();
}

void LateGradients::run(const Key& key) {
  std::vector<Queue::Late> late;
  {
    const std::lock_guard lock(queue_->mutex);
    const auto found = queue_->late.find(key);
    if (found == queue_->late.end()) return;
    late = std::move(found->second);
    queue_->late.erase(found);
  }
  variable_list weights, gradients;
  {
    const at::NoGradGuard no_grad;
    for (const auto& [weight, input, gradient] : late) {
      weights.push_back(weight);
      gradients.push_back(weight_gradient(weight, input, gradient));
    }
  }
  torch::autograd::backward(weights, gradients);
}

std::optional<at::Tensor> LateGradients::linear(const at::Tensor& input, const at::Tensor& weight,
                                                const at::Tensor& bias) {
  // Gradients come late to leaves alone: another weight's goes on in the backward pass. The
  // operator itself reports arguments that do not fit.
  const bool is_trained = at::GradMode::is_enabled() && weight.is_leaf() && weight.requires_grad();
  if (!is_trained || weight.dim() != 2 || input.dim() == 0 || input.size(-1) != weight.size(1) ||
      input.device() != weight.device()) {
    return std::nullopt;
  }
  return Product::apply(input, weight, bias.defined() ? std::optional(bias) : std::nullopt, queue_);
}

}  // namespace accelerate
