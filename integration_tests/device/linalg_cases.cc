// Products of matrices and vectors, decompositions, solvers.
#include <ATen/ATen.h>

#include "integration_tests/device/op_cases.h"

namespace accelerate::device_test {
namespace {

// Well conditioned, and for `positive_definite` symmetric.
Tensor regular(const Tensor& x) { return x + 4 * at::eye(x.size(-1), x.options()); }
Tensor positive_definite(const Tensor& x) {
  return x.matmul(x.mT()) + at::eye(x.size(-1), x.options());
}

void add_products(OpCases& cases) {
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const std::string suffix = std::string("_") + c10::toString(dtype);
    cases.differentiable(
        "mm" + suffix, {{17, 33}, {33, 9}}, [](const Tensors& x) { return at::mm(x[0], x[1]); },
        dtype);
    cases.differentiable(
        "linear" + suffix, {{3, 5, 16}, {8, 16}, {8}},
        [](const Tensors& x) { return at::linear(x[0], x[1], x[2]); }, dtype);
    cases.differentiable(
        "bmm" + suffix, {{3, 7, 5}, {3, 5, 4}},
        [](const Tensors& x) { return at::bmm(x[0], x[1]); }, dtype);
  }
  cases.differentiable("mm_transposed", {{33, 17}, {9, 33}},
                       [](const Tensors& x) { return at::mm(x[0].t(), x[1].t()); });
  cases.differentiable("addmm", {{9}, {17, 33}, {33, 9}},
                       [](const Tensors& x) { return at::addmm(x[0], x[1], x[2], 0.5, 2); });
  cases.differentiable("baddbmm", {{7, 4}, {3, 7, 5}, {3, 5, 4}},
                       [](const Tensors& x) { return at::baddbmm(x[0], x[1], x[2], 0.5, 2); });
  cases.differentiable("addbmm", {{7, 4}, {3, 7, 5}, {3, 5, 4}},
                       [](const Tensors& x) { return at::addbmm(x[0], x[1], x[2]); });
  cases.differentiable("addmv", {{7}, {7, 5}, {5}},
                       [](const Tensors& x) { return at::addmv(x[0], x[1], x[2], 0.5, 2); });
  cases.differentiable("addr", {{7, 5}, {7}, {5}},
                       [](const Tensors& x) { return at::addr(x[0], x[1], x[2], 0.5, 2); });
  cases.differentiable("mv", {{7, 5}, {5}}, [](const Tensors& x) { return at::mv(x[0], x[1]); });
  cases.differentiable("dot", {{65}, {65}}, [](const Tensors& x) {
    return Tensors{at::dot(x[0], x[1]), at::vdot(x[0], x[1])};
  });
  cases.differentiable("outer", {{7}, {5}}, [](const Tensors& x) { return at::outer(x[0], x[1]); });
  cases.differentiable("inner", {{3, 7}, {2, 7}},
                       [](const Tensors& x) { return at::inner(x[0], x[1]); });
  cases.differentiable("kron", {{3, 2}, {2, 4}},
                       [](const Tensors& x) { return at::kron(x[0], x[1]); });
  cases.differentiable("cross", {{4, 3}, {4, 3}},
                       [](const Tensors& x) { return at::linalg_cross(x[0], x[1]); });
  cases.differentiable("tensordot", {{3, 4, 5}, {5, 4, 2}},
                       [](const Tensors& x) { return at::tensordot(x[0], x[1], {1, 2}, {1, 0}); });
  cases.differentiable("einsum", {{2, 3, 4}, {2, 4, 5}}, [](const Tensors& x) {
    return Tensors{at::einsum("bij,bjk->bik", {x[0], x[1]}), at::einsum("bij->ji", {x[0]}),
                   at::einsum("...ij,...jk->...", {x[0], x[1]})};
  });
  cases.differentiable("chain_matmul", {{3, 4}, {4, 5}, {5, 2}},
                       [](const Tensors& x) { return at::linalg_multi_dot({x[0], x[1], x[2]}); });
  cases.differentiable("matmul_vector_vector", {{6}, {6}},
                       [](const Tensors& x) { return at::matmul(x[0], x[1]); });
  cases.differentiable("matmul_vector_matrix", {{6}, {6, 3}},
                       [](const Tensors& x) { return at::matmul(x[0], x[1]); });
  cases.differentiable("matmul_broadcast", {{2, 1, 4, 6}, {3, 6, 5}},
                       [](const Tensors& x) { return at::matmul(x[0], x[1]); });
  cases.differentiable("matmul_folded", {{2, 3, 4, 6}, {6, 5}},
                       [](const Tensors& x) { return at::matmul(x[0], x[1]); });
  cases.differentiable("matrix_power", {{5, 5}}, [](const Tensors& x) {
    return Tensors{at::matrix_power(x[0], 3), at::linalg_matrix_power(regular(x[0]), -2)};
  });
  cases.differentiable("matrix_exp", {{5, 5}},
                       [](const Tensors& x) { return at::matrix_exp(x[0]); });
  cases.differentiable("cdist", {{2, 7, 5}, {2, 4, 5}}, [](const Tensors& x) {
    return Tensors{at::cdist(x[0], x[1]), at::cdist(x[0], x[1], 1), at::pdist(x[0][0])};
  });
  cases.differentiable("cosine_similarity", {{7, 5}, {7, 5}},
                       [](const Tensors& x) { return at::cosine_similarity(x[0], x[1]); });
  cases.differentiable("bilinear", {{7, 5}, {7, 4}, {3, 5, 4}, {3}},
                       [](const Tensors& x) { return at::bilinear(x[0], x[1], x[2], x[3]); });
  cases.differentiable("cov_corrcoef", {{4, 20}},
                       [](const Tensors& x) { return Tensors{at::cov(x[0]), at::corrcoef(x[0])}; });
  cases.differentiable("vander_vecdot", {{5}, {5}}, [](const Tensors& x) {
    return Tensors{at::linalg_vander(x[0]), at::linalg_vecdot(x[0], x[1])};
  });
  cases.add("mm_of_integers", [](Inputs& in) {
    return at::mm(in.integers({4, 7}, -9, 9), in.integers({7, 5}, -9, 9));
  });
}

void add_decompositions(OpCases& cases) {
  cases.differentiable("svd", {{6, 4}}, [](const Tensors& x) {
    return at::linalg_svd(x[0], /*full_matrices=*/false);
  });
  cases.differentiable("svdvals", {{6, 4}},
                       [](const Tensors& x) { return at::linalg_svdvals(x[0]); });
  cases.differentiable("qr", {{6, 4}}, [](const Tensors& x) { return at::linalg_qr(x[0]); });
  cases.differentiable("cholesky", {{2, 5, 5}}, [](const Tensors& x) {
    return at::linalg_cholesky(positive_definite(x[0]));
  });
  cases.differentiable("cholesky_solve", {{5, 2}, {5, 5}}, [](const Tensors& x) {
    const Tensor factor = at::linalg_cholesky(positive_definite(x[1]));
    return Tensors{at::cholesky_solve(x[0], factor), at::cholesky_inverse(factor)};
  });
  cases.differentiable("eigh", {{5, 5}}, [](const Tensors& x) {
    return at::linalg_eigh(positive_definite(x[0]), "L");
  });
  cases.add("eig", [](Inputs& in) { return at::linalg_eig(in.randn({5, 5})); });
  cases.differentiable("eigvals", {{5, 5}}, [](const Tensors& x) {
    return Tensors{at::linalg_eigvalsh(positive_definite(x[0]), "L")};
  });
  cases.differentiable("inverse", {{2, 5, 5}},
                       [](const Tensors& x) { return at::linalg_inv(regular(x[0])); });
  cases.differentiable("pinverse", {{6, 4}},
                       [](const Tensors& x) { return at::linalg_pinv(x[0]); });
  cases.differentiable("solve", {{2, 5, 5}, {2, 5, 3}},
                       [](const Tensors& x) { return at::linalg_solve(regular(x[0]), x[1]); });
  cases.differentiable("solve_triangular", {{5, 5}, {5, 3}}, [](const Tensors& x) {
    return at::linalg_solve_triangular(regular(x[0]).triu(), x[1], /*upper=*/true);
  });
  // Not the default driver, gelsy: on the same CPU it gives one result or another from call to
  // call.
  cases.differentiable("lstsq", {{7, 4}, {7, 2}}, [](const Tensors& x) {
    return std::get<0>(at::linalg_lstsq(x[0], x[1], std::nullopt, "gelsd"));
  });
  cases.differentiable("det", {{2, 5, 5}}, [](const Tensors& x) {
    Tensors results{at::linalg_det(x[0]), at::logdet(positive_definite(x[0]))};
    append(results, as_list(at::linalg_slogdet(x[0])));
    return results;
  });
  cases.differentiable("lu", {{5, 5}}, [](const Tensors& x) {
    Tensors results = as_list(at::linalg_lu(x[0]));
    append(results, as_list(at::linalg_lu_factor(x[0])));
    return results;
  });
  cases.add("matrix_rank_cond", [](Inputs& in) {
    const Tensor x = in.randn({6, 4});
    return Tensors{at::linalg_matrix_rank(x), at::linalg_cond(x), at::linalg_matrix_norm(x, "nuc")};
  });
  cases.add("ldl", [](Inputs& in) {
    const Tensor x = positive_definite(in.randn({5, 5}));
    const auto [factor, pivots] = at::linalg_ldl_factor(x);
    return Tensors{factor, pivots, at::linalg_ldl_solve(factor, pivots, in.randn({5, 2}))};
  });
  cases.add("householder_product", [](Inputs& in) {
    const auto [reflectors, tau] = at::geqrf(in.randn({6, 4}));
    return Tensors{reflectors, tau, at::linalg_householder_product(reflectors, tau),
                   at::ormqr(reflectors, tau, in.randn({6, 3}))};
  });
}

}  // namespace

void add_linalg_cases(OpCases& cases) {
  add_products(cases);
  add_decompositions(cases);
}

}  // namespace accelerate::device_test
