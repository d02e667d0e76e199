// Operators that programs seldom call themselves: parts that others are composed of, and those
// whose kernel LibTorch picks in a way of its own.
#include <ATen/ATen.h>

#include "integration_tests/device/op_cases.h"

namespace accelerate::device_test {
namespace {

void add_parts(OpCases& cases) {
  cases.add("native_norms", [](Inputs& in) {
    const Tensor x = in.randn({3, 4, 5, 6});
    const Tensor weight = in.randn({4});
    Tensors results = as_list(at::native_layer_norm(x, {6}, {}, {}, 1e-5));
    append(results, as_list(at::native_group_norm(x, weight, weight, 3, 4, 30, 2, 1e-5)));
    append(results, as_list(at::native_batch_norm(x, weight, weight, {}, {}, true, 0.1, 1e-5)));
    append(results, as_list(at::_native_batch_norm_legit(x, weight, weight, true, 0.1, 1e-5)));
    return results;
  });
  cases.add("native_channel_shuffle",
            [](Inputs& in) { return at::native_channel_shuffle(in.randn({2, 8, 3, 4}), 4); });
  cases.add("masked_softmax", [](Inputs& in) {
    const Tensor x = in.randn({2, 3, 5, 5});
    return Tensors{at::_masked_softmax(x, in.booleans({2, 3, 5, 5}), 3, 2),
                   at::_safe_softmax(x, 3)};
  });
  cases.add("addmm_activation", [](Inputs& in) {
    const Tensor bias = in.randn({6});
    const Tensor x = in.randn({4, 5});
    const Tensor y = in.randn({5, 6});
    return Tensors{at::_addmm_activation(bias, x, y),
                   at::_addmm_activation(bias, x, y, 1, 1, true)};
  });
  cases.differentiable(
      "slow_convolutions", {{2, 3, 8, 9}, {4, 3, 3, 3}, {4}}, [](const Tensors& x) {
        return Tensors{at::thnn_conv2d(x[0], x[1], {3, 3}, x[2], {1, 1}, {1, 1}),
                       at::slow_conv_dilated2d(x[0], x[1], {3, 3}, x[2], {1, 1}, {0, 0}, {2, 2})};
      });
  cases.differentiable("slow_conv_transpose", {{2, 4, 5, 6}, {4, 3, 3, 3}}, [](const Tensors& x) {
    return at::slow_conv_transpose2d(x[0], x[1], {3, 3}, {}, {1, 1}, {0, 0}, {0, 0}, {1, 1});
  });
  cases.differentiable("slow_conv3d", {{2, 3, 5, 6, 7}, {4, 3, 3, 3, 3}}, [](const Tensors& x) {
    return at::slow_conv3d(x[0], x[1], {3, 3, 3}, {}, {1, 1, 1}, {0, 0, 0});
  });
  cases.differentiable("convolution", {{2, 3, 8, 9}, {4, 3, 3, 3}, {4}}, [](const Tensors& x) {
    return at::convolution(x[0], x[1], x[2], {1, 1}, {1, 1}, {1, 1}, false, {0, 0}, 1);
  });
  cases.add("convolution_backward", [](Inputs& in) {
    return at::convolution_backward(in.randn({2, 4, 6, 7}), in.randn({2, 3, 8, 9}),
                                    in.randn({4, 3, 3, 3}), at::IntArrayRef{4}, {1, 1}, {0, 0},
                                    {1, 1}, false, {0, 0}, 1, {true, true, true});
  });
  cases.add("fake_quantize", [](Inputs& in) {
    return with_gradients(in, {in.randn({4, 9})}, [&](const Tensors& x) {
      return Tensors{
          at::fake_quantize_per_tensor_affine(x[0], 0.1, 3, 0, 255),
          at::fake_quantize_per_channel_affine(x[0], in.uniform({4}, 0.05, 0.2),
                                               in.integers({4}, 0, 9, at::kInt), 0, 0, 255)};
    });
  });
  cases.add("histogramdd", [](Inputs& in) {
    const auto [counts, edges] = at::histogramdd(in.randn({50, 2}), {4, 5});
    Tensors results{counts};
    append(results, edges);
    return results;
  });
  cases.add("lu_parts", [](Inputs& in) {
    const Tensor x = in.randn({5, 5});
    const auto [factor, pivots] = at::linalg_lu_factor(x);
    Tensors results = as_list(at::lu_unpack(factor, pivots));
    append(results, {at::lu_solve(in.randn({5, 2}), factor, pivots),
                     at::linalg_lu_solve(factor, pivots, in.randn({5, 2}))});
    append(results, as_list(at::triangular_solve(in.randn({5, 2}), x)));
    append(results, as_list(at::linalg_inv_ex(x)));
    append(results, as_list(at::linalg_solve_ex(x, in.randn({5, 2}))));
    return results;
  });
  cases.differentiable("tensorsolve", {{2, 3, 6}, {2, 3}}, [](const Tensors& x) {
    return Tensors{at::linalg_tensorsolve(x[0], x[1]), at::linalg_tensorinv(x[0], 2)};
  });
}

void add_polynomials(OpCases& cases) {
  cases.add("special_polynomials", [](Inputs& in) {
    const Tensor x = in.uniform({20}, -0.9, 0.9);
    const Tensor n = in.integers({20}, 0, 6, at::kFloat);
    return Tensors{
        at::special_chebyshev_polynomial_t(x, n), at::special_chebyshev_polynomial_u(x, n),
        at::special_hermite_polynomial_h(x, n),   at::special_laguerre_polynomial_l(x, n),
        at::special_legendre_polynomial_p(x, n),  at::special_spherical_bessel_j0(x)};
  });
  cases.add("special_bessel", [](Inputs& in) {
    const Tensor x = in.uniform({20}, 0.3, 4);
    return Tensors{at::special_bessel_y0(x),          at::special_bessel_y1(x),
                   at::special_modified_bessel_i0(x), at::special_modified_bessel_i1(x),
                   at::special_modified_bessel_k1(x), at::special_scaled_modified_bessel_k0(x)};
  });
}

Tensor sparse(Inputs& in) {
  const Tensor indices = in.indices({0, 1, 4, 0, 2, 5}).view({2, 3});
  return at::sparse_coo_tensor(indices, in.randn({3}), {5, 6}).coalesce();
}

void add_sparse_parts(OpCases& cases) {
  cases.add("sparse_times_dense", [](Inputs& in) {
    const Tensor x = sparse(in);
    return Tensors{at::_sparse_mm(x, in.randn({6, 3})), at::hspmm(x, in.randn({6, 3}))};
  });
  cases.add("sparse_times_sparse",
            [](Inputs& in) { return at::mm(sparse(in), sparse(in).t().coalesce()); });
}

// Constant zeros without memory, which gradients of constants are.
void add_zero_tensors(OpCases& cases) {
  cases.add("zeros_without_memory", [](Inputs& in) {
    const Tensor zeros = at::_efficientzerotensor({3, 4}, in.options());
    const Tensor x = in.randn({3, 4});
    return Tensors{zeros + x,
                   zeros * x,
                   zeros.clone(),
                   x + zeros,
                   zeros.cpu().to(in.device()),
                   in.number(zeros.sum().item<double>()),
                   zeros.mm(x.t()),
                   zeros.to(at::kDouble)};
  });
}

}  // namespace

void add_rare_cases(OpCases& cases) {
  add_parts(cases);
  add_polynomials(cases);
  add_sparse_parts(cases);
  add_zero_tensors(cases);
}

}  // namespace accelerate::device_test
