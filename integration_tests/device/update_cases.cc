// Operators that write to what they are given: in place, out=, whole lists, resizing, optimizers.
#include <ATen/ATen.h>

#include "integration_tests/device/op_cases.h"

namespace accelerate::device_test {
namespace {

void add_in_place(OpCases& cases) {
  cases.add("in_place_arithmetic", [](Inputs& in) {
    Tensor x = in.randn({4, 9});
    const Tensor same = x;
    x.add_(1).mul_(in.randn({9})).sub_(in.randn({4, 1}), 0.5).div_(2).pow_(2).sqrt_();
    x += 2;
    x *= x.clone();
    x.clamp_(0.1, 3).exp_().neg_().abs_().log_().tanh_();
    x.addcmul_(x.clone(), x.clone(), 0.5)
        .addcdiv_(x.clone(), x.clone() + 5)
        .lerp_(in.randn({4, 9}), 0.2);
    return Tensors{x, same, in.number(x.is_same(same))};
  });
  cases.add("in_place_matmul", [](Inputs& in) {
    Tensor x = in.randn({4, 6});
    x.addmm_(in.randn({4, 5}), in.randn({5, 6}), 0.5, 2);
    x[0].addmv_(in.randn({6, 3}), in.randn({3}));
    x.addr_(in.randn({4}), in.randn({6}));
    return x;
  });
  cases.add("in_place_on_strided", [](Inputs& in) {
    Tensor x = in.randn({6, 8});
    x.t().slice(0, 1, 7, 3).mul_(in.randn({2, 6}));
    x.slice(1, 0, 8, 2).relu_();
    x.select(1, 3).zero_();
    return x;
  });
  cases.add("in_place_of_bfloat16", [](Inputs& in) {
    Tensor x = in.randn({40}, at::kBFloat16);
    return x.mul_(1.5).add_(in.randn({40})).sigmoid_();
  });
  cases.add("copy", [](Inputs& in) {
    Tensor x = at::zeros({4, 6}, in.options());
    Tensor bits = at::zeros({4, 6}, in.options(at::kInt));
    Tensor part = at::zeros({6, 8}, in.options());
    x.copy_(in.randn({6}));
    bits.copy_(in.randn({4, 6}) * 9);
    part.t().slice(0, 0, 8, 2).copy_(in.randn({4, 6}, at::kDouble));
    return Tensors{x, bits, part};
  });
  cases.add("copy_through_the_cpu", [](Inputs& in) {
    const Tensor x = in.randn({4, 6});
    Tensor strided = at::empty({6, 4});
    strided.copy_(x.t());
    Tensor back = at::zeros({4, 6}, in.options());
    back.copy_(strided.t());
    return Tensors{back, x.t().cpu().to(in.device()), x.to(at::kCPU, at::kHalf).to(in.device())};
  });
  cases.add("squeeze_in_place", [](Inputs& in) {
    Tensor x = in.randn({1, 4, 1, 6});
    x.squeeze_().unsqueeze_(1).transpose_(0, 2);
    x.swapaxes_(1, 2);
    return x;
  });
}

void add_out(OpCases& cases) {
  cases.add("out_of_the_right_size", [](Inputs& in) {
    const Tensor x = in.randn({5, 5});
    const Tensor y = in.randn({5, 5});
    Tensor sum = at::zeros({5, 5}, in.options());
    Tensor product = at::zeros({5, 5}, in.options());
    Tensor wide = at::zeros({5, 5}, in.options(at::kDouble));
    Tensor compared = at::zeros({5, 5}, in.options(at::kBool));
    at::add_out(sum, x, y);
    at::mm_out(product, x, y);
    at::mul_out(wide, x, y);
    at::gt_out(compared, x, y);
    return Tensors{sum, product, wide, compared};
  });
  cases.add("out_that_grows", [](Inputs& in) {
    const Tensor x = in.randn({5, 7});
    Tensors outs;
    for (int i = 0; i < 8; ++i) outs.push_back(at::empty({0}, in.options()));
    at::add_out(outs[0], x, x);
    at::mm_out(outs[1], x, x.t());
    at::cat_out(outs[2], {x, x}, 1);
    at::sum_out(outs[3], x, Dims{1});
    at::exp_out(outs[4], x.t());
    at::cumsum_out(outs[5], x, 1);
    at::stack_out(outs[6], {x, x});
    at::arange_out(outs[7], 0, 9, 1);
    return outs;
  });
  cases.add("out_twice", [](Inputs& in) {
    const Tensor x = in.randn({5, 7});
    Tensor values = at::empty({0}, in.options());
    Tensor indices = at::empty({0}, in.options(at::kLong));
    at::sort_out(values, indices, x, 1);
    Tensor top = at::empty({0}, in.options());
    Tensor where = at::empty({0}, in.options(at::kLong));
    at::topk_out(top, where, x, 3);
    return Tensors{values, indices, top, where};
  });
  cases.add("out_into_a_view", [](Inputs& in) {
    Tensor x = at::zeros({6, 8}, in.options());
    Tensor column = x.select(1, 2);
    Tensor corner = x.slice(0, 0, 3).slice(1, 4, 7);
    at::add_out(column, in.randn({6}), in.randn({6}));
    at::mm_out(corner, in.randn({3, 2}), in.randn({2, 3}));
    return x;
  });
  cases.add("out_draws", [](Inputs& in) {
    Tensor x = at::empty({0}, in.options());
    at::randn_out(x, {20}, in.generator(3));
    Tensor order = at::empty({0}, in.options(at::kLong));
    at::randperm_out(order, 12, in.generator(4));
    return Tensors{x, order};
  });
  cases.add("out_of_decompositions", [](Inputs& in) {
    const Tensor x = in.randn({4, 4});
    Tensor inverse = at::empty({0}, in.options());
    Tensor u = at::empty({0}, in.options());
    Tensor s = at::empty({0}, in.options());
    Tensor v = at::empty({0}, in.options());
    at::linalg_inv_out(inverse, x);
    at::linalg_svd_out(u, s, v, x);
    return Tensors{inverse, u, s, v};
  });
}

void add_resizing(OpCases& cases) {
  cases.add("resize", [](Inputs& in) {
    Tensor grown = in.randn({4});
    grown.resize_({3, 5});
    grown.view({15}).slice(0, 4).zero_();  // What lies behind is undefined.
    Tensor shrunk = in.randn({4, 6});
    shrunk.resize_({2, 3});
    Tensor like = in.randn({8});
    like.resize_as_(shrunk);
    return Tensors{grown, shrunk, like};
  });
  cases.add("resize_keeps_values", [](Inputs& in) {
    Tensor x = in.randn({4, 4});
    const Tensor view = x.slice(0, 1, 2);
    x.resize_({100, 4});
    x.slice(0, 4).fill_(7);
    return Tensors{x, view};
  });
  cases.add("set", [](Inputs& in) {
    const Tensor x = in.randn({12});
    Tensor part = at::empty({0}, in.options());
    part.set_(x.storage(), 2, {2, 3}, {4, 1});
    Tensor whole = at::empty({0}, in.options());
    whole.set_(x.storage());
    Tensor same = at::empty({0}, in.options());
    same.set_(x);
    same.mul_(2);
    Tensor nothing = in.randn({3});
    nothing.set_();
    return Tensors{part, whole, same, nothing, x};
  });
  cases.add("set_data", [](Inputs& in) {
    Tensor x = in.randn({3}).requires_grad_();
    x.set_data(in.randn({4, 5}));
    return Tensors{x, x * 2};
  });
}

Tensors list_of(Inputs& in, double low = -2, double high = 2) {
  return {in.uniform({3}, low, high), in.uniform({4, 5}, low, high), in.uniform({}, low, high)};
}

void add_lists(OpCases& cases) {
  cases.add("foreach_arithmetic", [](Inputs& in) {
    const Tensors x = list_of(in);
    const Tensors y = list_of(in, 0.5, 2);
    Tensors results = at::_foreach_add(x, y, 0.5);
    append(results, at::_foreach_add(x, 1.5));
    append(results, at::_foreach_mul(x, y));
    append(results, at::_foreach_div(x, y));
    append(results, at::_foreach_sub(x, {1, 2, 3}));
    append(results, at::_foreach_addcmul(x, x, y, 0.5));
    append(results, at::_foreach_addcdiv(x, x, y, 0.5));
    append(results, at::_foreach_lerp(x, y, 0.25));
    append(results, at::_foreach_maximum(x, y));
    append(results, at::_foreach_clamp_min(x, 0.1));
    append(results, at::_foreach_pow(y, 1.5));
    return results;
  });
  cases.add("foreach_unary", [](Inputs& in) {
    const Tensors x = list_of(in, 0.1, 2);
    Tensors results = at::_foreach_sqrt(x);
    append(results, at::_foreach_exp(x));
    append(results, at::_foreach_neg(x));
    append(results, at::_foreach_abs(x));
    append(results, at::_foreach_reciprocal(x));
    append(results, at::_foreach_log(x));
    append(results, at::_foreach_norm(x));
    append(results, at::_foreach_norm(x, 1));
    append(results, at::_foreach_max(x));
    return results;
  });
  cases.add("foreach_in_place", [](Inputs& in) {
    Tensors x = list_of(in);
    at::_foreach_add_(x, 1.0);
    at::_foreach_mul_(x, list_of(in));
    at::_foreach_mul_(x, in.number(0.5).to(at::kFloat).squeeze());
    at::_foreach_addcmul_(x, list_of(in), list_of(in), 0.1);
    at::_foreach_lerp_(x, list_of(in), 0.3);
    at::_foreach_exp_(x);
    Tensors zeroed = list_of(in);
    at::_foreach_zero_(zeroed);
    Tensors copied = list_of(in);
    at::_foreach_copy_(copied, x);
    append(x, zeroed);
    append(x, copied);
    return x;
  });
  cases.add("amp_unscale", [](Inputs& in) {
    Tensors gradients = list_of(in);
    Tensor found = at::zeros({1}, in.options());
    Tensor scale = in.values({64});
    Tensor tracker = at::zeros({1}, in.options(at::kInt));
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, in.values({0.25}));
    at::_amp_update_scale_(scale, tracker, found, 2.0, 0.5, 1);
    append(gradients, {found, scale, tracker});
    return gradients;
  });
}

void add_optimizers(OpCases& cases) {
  cases.add("fused_adam", [](Inputs& in) {
    Tensors results;
    for (bool decoupled : {false, true}) {
      Tensors parameters = list_of(in), gradients = list_of(in);
      Tensors averages = list_of(in), squares = list_of(in, 0.1, 2), maxima = list_of(in, 0.1, 2);
      Tensors steps;
      for (int i = 0; i < 3; ++i) steps.push_back(at::full({}, i + 1, in.options()));
      if (decoupled) {
        at::_fused_adamw_(parameters, gradients, averages, squares, maxima, steps, 0.1, 0.9, 0.99,
                          0.01, 1e-8, /*amsgrad=*/true, /*maximize=*/false);
      } else {
        at::_fused_adam_(parameters, gradients, averages, squares, maxima, steps, 0.1, 0.9, 0.99,
                         0.01, 1e-8, /*amsgrad=*/true, /*maximize=*/false);
      }
      for (const Tensors& list : {parameters, averages, squares, maxima}) append(results, list);
    }
    return results;
  });
  cases.add("fused_sgd", [](Inputs& in) {
    Tensors parameters = list_of(in), gradients = list_of(in), momenta = list_of(in);
    at::_fused_sgd_(parameters, gradients, momenta, 0.01, 0.9, 0.1, 0.0, /*nesterov=*/true,
                    /*maximize=*/false, /*is_first_step=*/false);
    append(parameters, momenta);
    return parameters;
  });
  cases.add("fused_adagrad", [](Inputs& in) {
    Tensors parameters = list_of(in), gradients = list_of(in), sums = list_of(in, 0.1, 2);
    Tensors steps;
    for (int i = 0; i < 3; ++i) steps.push_back(at::full({}, i + 1, in.options()));
    at::_fused_adagrad_(parameters, gradients, sums, steps, 0.1, 0.01, 0.02, 1e-8, false);
    append(parameters, sums);
    return parameters;
  });
}

}  // namespace

void add_update_cases(OpCases& cases) {
  add_in_place(cases);
  add_out(cases);
  add_resizing(cases);
  add_lists(cases);
  add_optimizers(cases);
}

}  // namespace accelerate::device_test
