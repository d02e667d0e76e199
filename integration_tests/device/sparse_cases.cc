// Sparse COO tensors, as embeddings' gradients are.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "integration_tests/device/op_cases.h"

namespace accelerate::device_test {
namespace {

// 5 x 6 with a duplicate.
Tensor sparse(Inputs& in) {
  return at::sparse_coo_tensor(in.indices({0, 1, 1, 4, 0, 2, 2, 5}).view({2, 4}), in.randn({4}),
                               {5, 6});
}

// 6 x 3, whole rows, with a duplicate.
Tensor sparse_rows(Inputs& in) {
  return at::sparse_coo_tensor(in.indices({0, 4, 4}).view({1, 3}), in.randn({3, 3}), {6, 3});
}

}  // namespace

void add_sparse_cases(OpCases& cases) {
  cases.add("sparse_make", [](Inputs& in) {
    return Tensors{sparse(in), sparse_rows(in),
                   at::sparse_coo_tensor({3, 4}, in.options().layout(at::kSparse))};
  });
  cases.add("sparse_parts", [](Inputs& in) {
    const Tensor x = sparse(in);
    const Tensor coalesced = x.coalesce();
    return Tensors{x._indices(),
                   x._values(),
                   coalesced.indices(),
                   coalesced.values(),
                   in.number(static_cast<double>(x._nnz())),
                   in.number(coalesced.is_coalesced())};
  });
  cases.add("sparse_coalesce",
            [](Inputs& in) { return Tensors{sparse(in).coalesce(), sparse_rows(in).coalesce()}; });
  cases.add("sparse_to_dense",
            [](Inputs& in) { return Tensors{sparse(in).to_dense(), sparse_rows(in).to_dense()}; });
  cases.add("dense_to_sparse", [](Inputs& in) {
    const Tensor x = in.integers({4, 5}, 0, 3).to(at::kFloat);
    return Tensors{x.to_sparse(), x.to_sparse(1)};
  });
  cases.add("sparse_mm", [](Inputs& in) {
    return Tensors{at::mm(sparse(in), in.randn({6, 3})),
                   at::addmm(in.randn({5, 3}), sparse(in), in.randn({6, 3}))};
  });
  cases.add("sparse_arithmetic", [](Inputs& in) {
    const Tensor x = sparse_rows(in);
    return Tensors{x + sparse_rows(in), x * 2,   x / 4, -x, in.randn({6, 3}).add(x, 0.5),
                   x.coalesce().pow(2), x.norm()};
  });
  cases.add("sparse_sum", [](Inputs& in) {
    return Tensors{at::_sparse_sum(sparse(in)), at::_sparse_sum(sparse(in), {0})};
  });
  cases.add("sparse_in_place", [](Inputs& in) {
    Tensor dense = in.randn({6, 3});
    Tensor x = sparse_rows(in);
    dense.add_(x, -0.1);
    x.mul_(0.5);
    Tensor accumulated = sparse_rows(in);
    accumulated.add_(x);
    Tensor zero = sparse_rows(in);
    zero.zero_();
    return Tensors{dense, x, accumulated, zero};
  });
  cases.add("sparse_copies", [](Inputs& in) {
    const Tensor x = sparse_rows(in);
    return Tensors{x.clone(), x.to(at::kDouble), x.cpu().to(in.device()), x.detach(),
                   at::zeros_like(x)};
  });
  cases.add("sparse_mask_and_transpose", [](Inputs& in) {
    const Tensor mask = sparse(in).coalesce();
    return Tensors{in.randn({5, 6}).sparse_mask(mask), sparse(in).t(),
                   sparse(in).index_select(0, in.indices({1, 4}))};
  });
  cases.add("sparse_softmax",
            [](Inputs& in) { return at::_sparse_softmax(sparse(in).coalesce(), 1, at::kFloat); });
  cases.add("embedding_with_sparse_gradient", [](Inputs& in) {
    const Tensor indices = in.integers({4, 3}, 0, 10);
    return with_gradients(in, {in.randn({10, 6})}, [&](const Tensors& x) {
      return as_list(at::embedding(x[0], indices, -1, false, /*sparse=*/true));
    });
  });
  cases.add("embedding_bag_with_sparse_gradient", [](Inputs& in) {
    const Tensor indices = in.integers({12}, 0, 10);
    const Tensor offsets = in.indices({0, 4, 9});
    return with_gradients(in, {in.randn({10, 6})}, [&](const Tensors& x) {
      return as_list(
          std::get<0>(at::embedding_bag(x[0], indices, offsets, false, 0, /*sparse=*/true)));
    });
  });
  cases.add("sparse_gradient_accumulates", [](Inputs& in) {
    Tensor weight = in.randn({10, 6}).requires_grad_();
    for (int i = 0; i < 2; ++i) {
      at::embedding(weight, in.integers({5}, 0, 10), -1, false, true).square().sum().backward();
    }
    const Tensor sparse_gradient = weight.grad().clone();
    (weight * weight).sum().backward();  // From now on dense.
    return Tensors{sparse_gradient, weight.grad()};
  });
  cases.add("sparse_gradient_of_product", [](Inputs& in) {
    const Tensor left = sparse(in).coalesce();
    return with_gradients(in, {in.randn({6, 3})},
                          [&](const Tensors& x) { return as_list(at::_sparse_mm(left, x[0])); });
  });
}

}  // namespace accelerate::device_test
