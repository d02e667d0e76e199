// Automatic differentiation beyond one backward pass, and the modes without it.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/utils.h>

#include "integration_tests/device/op_cases.h"

namespace accelerate::device_test {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::grad;
using torch::autograd::variable_list;

// First and second derivatives of a sum of `function`.
template <typename Function>
void add_twice(OpCases& cases, const char* name, std::vector<std::vector<int64_t>> sizes,
               Function function) {
  cases.add(name, [=](Inputs& in) {
    Tensors inputs;
    for (const auto& size : sizes) inputs.push_back(in.randn(size).requires_grad_());
    const Tensor result = function(inputs);
    Tensors results{result};
    const Tensors first = grad({result.sum()}, inputs, {}, std::nullopt, /*create_graph=*/true);
    append(results, first);
    Tensor norm = at::zeros({}, in.options());
    for (const Tensor& gradient : first) norm = norm + gradient.square().sum();
    append(results, grad({norm}, inputs, {}, std::nullopt, false, /*allow_unused=*/true));
    return results;
  });
}

struct Cube : torch::autograd::Function<Cube> {
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * x * x;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Tensor x = context->get_saved_variables()[0];
    return {gradients[0] * 3 * x * x};
  }
};

void add_second_derivatives(OpCases& cases) {
  add_twice(cases, "twice_pointwise", {{4, 5}},
            [](const Tensors& x) { return x[0].pow(3) * x[0].sin() + x[0].tanh(); });
  add_twice(cases, "twice_matmul", {{4, 5}, {5, 3}},
            [](const Tensors& x) { return x[0].mm(x[1]).sigmoid(); });
  add_twice(cases, "twice_conv2d", {{2, 3, 6, 7}, {4, 3, 3, 3}, {4}},
            [](const Tensors& x) { return at::conv2d(x[0], x[1], x[2], 1, 1).square(); });
  add_twice(cases, "twice_layer_norm", {{3, 8}, {8}, {8}},
            [](const Tensors& x) { return at::layer_norm(x[0], {8}, x[1], x[2]).square(); });
  add_twice(cases, "twice_batch_norm", {{6, 4}, {4}, {4}}, [](const Tensors& x) {
    return at::batch_norm(x[0], x[1], x[2], {}, {}, true, 0.1, 1e-5, false).square();
  });
  add_twice(cases, "twice_softmax", {{3, 8}},
            [](const Tensors& x) { return x[0].softmax(1).square(); });
  add_twice(cases, "twice_dropout", {{4, 5}}, [](const Tensors& x) {
    torch::manual_seed(37);
    return at::dropout(x[0].square(), 0.3, true).pow(3);
  });
  add_twice(cases, "twice_custom_function", {{4}},
            [](const Tensors& x) { return Cube::apply(x[0]); });
}

void add_graphs(OpCases& cases) {
  cases.add("gradient_accumulates", [](Inputs& in) {
    Tensor x = in.randn({3, 4}).requires_grad_();
    for (int i = 0; i < 3; ++i) (x * x * (i + 1)).sum().backward();
    const Tensor before = x.grad().clone();
    x.mutable_grad().zero_();
    x.sum().backward();
    return Tensors{before, x.grad()};
  });
  cases.add("graph_used_twice", [](Inputs& in) {
    Tensor x = in.randn({3, 4}).requires_grad_();
    const Tensor y = (x.exp() * x).sum();
    y.backward({}, /*retain_graph=*/true);
    const Tensor once = x.grad().clone();
    y.backward();
    return Tensors{once, x.grad()};
  });
  cases.add("gradient_through_in_place", [](Inputs& in) {
    return with_gradients(in, {in.randn({4, 6}), in.randn({6})}, [](const Tensors& x) {
      Tensor y = x[0] * 2;
      y.add_(x[1]).mul_(3);
      y.slice(1, 0, 3).mul_(x[1].slice(0, 3));
      y.select(0, 1).zero_();
      return Tensors{y};
    });
  });
  cases.add("gradient_through_copies", [](Inputs& in) {
    return with_gradients(in, {in.randn({4, 6})}, [&](const Tensors& x) {
      Tensor y = at::zeros({4, 6}, in.options());
      y.copy_(x[0] * 2);
      return Tensors{y, x[0].to(at::kDouble), x[0].cpu().mul(3).to(in.device()), x[0].clone()};
    });
  });
  cases.add("hooks_change_gradients", [](Inputs& in) {
    return with_gradients(in, {in.randn({4, 6})}, [](const Tensors& x) {
      const Tensor y = x[0] * 2;
      y.register_hook([](const Tensor& gradient) { return gradient * 3 + 1; });
      return Tensors{y.exp()};
    });
  });
  cases.add("retained_gradient", [](Inputs& in) {
    Tensor x = in.randn({4}).requires_grad_();
    const Tensor y = x * 2;
    y.retain_grad();
    y.square().sum().backward();
    return Tensors{x.grad(), y.grad()};
  });
  cases.add("hessian_vector_product", [](Inputs& in) {
    Tensor x = in.randn({6}).requires_grad_();
    const Tensor y = (x.pow(4) + x.roll({1}) * x.square()).sum();
    const Tensor first = grad({y}, {x}, {}, std::nullopt, true)[0];
    return grad({first}, {x}, {in.randn({6})});
  });
}

void add_modes(OpCases& cases) {
  cases.add("without_gradients", [](Inputs& in) {
    Tensor x = in.randn({4, 4}).requires_grad_();
    at::NoGradGuard guard;
    x.add_(1);
    const Tensor y = x.mm(x).relu();
    return Tensors{x, y, in.number(y.requires_grad())};
  });
  cases.add("inference_mode", [](Inputs& in) {
    const Tensor outside = in.randn({4, 4});
    c10::InferenceMode mode;
    const Tensor y = outside.mm(in.randn({4, 4})).t().contiguous();
    Tensor z = y.softmax(1);
    z.mul_(2).slice(0, 1, 3).add_(1);
    return Tensors{y, z, at::conv1d(in.randn({1, 2, 9}), in.randn({3, 2, 3})),
                   in.number(y.is_inference())};
  });
  cases.add("detached", [](Inputs& in) {
    return with_gradients(in, {in.randn({4})}, [](const Tensors& x) {
      return Tensors{x[0].detach() * x[0], at::stack({x[0], x[0].detach()})};
    });
  });
}

}  // namespace

void add_autograd_cases(OpCases& cases) {
  add_second_derivatives(cases);
  add_graphs(cases);
  add_modes(cases);
}

}  // namespace accelerate::device_test
