// Dropout as one kernel that keeps a byte for each element, as real devices have it. LibTorch gives
// that to the devices that it knows; any other one draws noise in the input's type, divides it and
// multiplies with it, and keeps it for the backward pass.
#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "simulator/device/install.h"

namespace accelerate::simulator {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// ---- The kernels, in the host's memory or without any (Meta).

// What LibTorch's dropout on a CPU multiplies with, to the bit. The device has it in registers.
at::Tensor noise_of(const at::Tensor& mask, double p, at::ScalarType dtype) {
  return mask.to(dtype).div_(1 - p);
}

// The result and the mask. A mask of any type takes the same random numbers.
std::tuple<at::Tensor, at::Tensor> drop(const at::Tensor& input, double p) {
  at::Tensor mask = at::empty_like(input, input.options().dtype(c10::ScalarType::Bool));
  if (!mask.is_meta()) mask.bernoulli_(1 - p);
  return {input.mul(noise_of(mask, p, input.scalar_type())), mask};
}

at::Tensor drop_backward(const at::Tensor& gradient, const at::Tensor& mask, double p) {
  return gradient.mul(noise_of(mask, p, gradient.scalar_type()));
}

// ---- Their derivatives.

at::Tensor masked(const AutogradContext* context, const at::Tensor& gradient);

void save(AutogradContext* context, const at::Tensor& mask, double p) {
  context->save_for_backward({mask});
  context->saved_data["p"] = p;
}

struct Dropout : torch::autograd::Function<Dropout> {
  // `records`: whether the caller's gradients are enabled, so that this is a forward pass.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, double p,
                            bool records) {
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("sim::dropout", "").typed<decltype(drop)>();
    const at::AutoGradMode as_outside(records);
    auto [result, mask] = op.call(input, p);
    save(context, mask, p);
    return result;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {masked(context, gradients[0]), at::Tensor(), at::Tensor()};
  }
};

// It is linear, so its derivative is itself.
struct DropoutBackward : torch::autograd::Function<DropoutBackward> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gradient,
                            const at::Tensor& mask, double p) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("sim::dropout_backward", "")
                               .typed<decltype(drop_backward)>();
    save(context, mask, p);
    return op.call(gradient, mask, p);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {masked(context, gradients[0]), at::Tensor(), at::Tensor()};
  }
};

at::Tensor masked(const AutogradContext* context, const at::Tensor& gradient) {
  if (!gradient.defined()) return {};
  return DropoutBackward::apply(gradient, context->get_saved_variables()[0],
                                context->saved_data.at("p").toDouble());
}

at::Tensor dropout(const at::Tensor& input, double p, bool train) {
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  if (p == 0 || !train || input.numel() == 0) return input;
  if (p == 1) return input.mul(at::zeros({}, input.options()));
  return Dropout::apply(input, p, c10::GradMode::is_enabled());
}

}  // namespace

void register_dropout(torch::Library& device, torch::Library& autograd) {
  // The registrations last as long as the library.
  static auto& own =
      *new torch::Library(torch::Library::DEF, "sim", std::nullopt, __FILE__, __LINE__);
  own.def("dropout(Tensor input, float p) -> (Tensor, Tensor)", {at::Tag::nondeterministic_seeded});
  own.def("dropout_backward(Tensor gradient, Tensor mask, float p) -> Tensor");
  for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::Meta}) {
    own.impl("dropout", torch::dispatch(key, TORCH_FN(drop)));
    own.impl("dropout_backward", torch::dispatch(key, TORCH_FN(drop_backward)));
  }
  // Its own decomposition would come before a kernel without derivatives.
  device.impl("dropout", TORCH_FN(dropout));
  autograd.impl("dropout", TORCH_FN(dropout));
}

}  // namespace accelerate::simulator
