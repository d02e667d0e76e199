// Products, distances, decompositions and Fourier transforms.
#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>

#include "simulator/shape_rules/rule.h"

namespace accelerate::simulator::shape_rules {
namespace {

Tensor dot(const Tensor& self, const Tensor& other) {
  TORCH_CHECK(self.dim() == 1 && other.dim() == 1 && self.size(0) == other.size(0),
              "a dot product needs two vectors of one size, got ", self.sizes(), " and ",
              other.sizes());
  return dense({}, self.scalar_type());
}
Tensor matrix_vector(const Tensor& self, const Tensor& vector) {
  TORCH_CHECK(self.dim() == 2 && vector.dim() == 1 && self.size(1) == vector.size(0),
              "a matrix of ", self.sizes(), " cannot be multiplied by a vector of ",
              vector.sizes());
  return dense({self.size(0)}, vector.scalar_type());
}
Tensor sum_of_products(const Tensor& self, const Tensor& left, const Tensor& right) {
  return dense({left.size(1), right.size(2)}, self.scalar_type());
}
Tensor integer_product(const Tensor& self, const Tensor& other) {
  return dense({self.size(0), other.size(1)}, at::kInt);
}

// ---- Distances between the rows of matrices.

// The sizes of matrices, as many as the batches of both tensors broadcast against each other have.
Dims matrices(const Tensor& x, const Tensor& y, int64_t rows, int64_t columns) {
  Dims sizes =
      at::infer_size_dimvector(x.sizes().slice(0, x.dim() - 2), y.sizes().slice(0, y.dim() - 2));
  sizes.push_back(rows);
  sizes.push_back(columns);
  return sizes;
}
Tensor distances(const Tensor& x, const Tensor& y) {
  return dense(matrices(x, y, x.size(-2), y.size(-2)), x.scalar_type());
}
Tensor distances_gradient(const Tensor&, const Tensor& x, const Tensor& y) {
  return dense(matrices(x, y, x.size(-2), x.size(-1)), x.scalar_type());
}
Tensor distances_within(const Tensor& self) {
  const int64_t rows = self.size(0);
  return dense({rows <= 1 ? 0 : rows * (rows - 1) / 2}, self.scalar_type());
}

// ---- Decompositions and solvers.

Tensor factor(const Tensor& self) { return column_major(self.sizes(), self.scalar_type()); }
Tensor third_factor(const Tensor&, const Tensor&, const Tensor& other) { return factor(other); }
Tensor solution(const Tensor& a, const Tensor& b) {
  return column_major(matrices(a, b, b.size(-2), b.size(-1)), a.scalar_type());
}

Results qr_parts(const Tensor& self) {
  Dims sizes(self.sizes().slice(0, self.dim() - 2));
  sizes.push_back(std::min(self.size(-2), self.size(-1)));
  return {factor(self), dense(sizes, self.scalar_type())};
}
Tensor eigenvalues(const Tensor& self) {
  return dense(self.sizes().slice(0, self.dim() - 1), c10::toComplexType(self.scalar_type()));
}
Results eigen(const Tensor& self) {
  return {eigenvalues(self), column_major(self.sizes(), c10::toComplexType(self.scalar_type()))};
}
Tensor combinations(const Tensor& input, const Tensor& coefficients) {
  Dims sizes(input.sizes());
  sizes[0] = coefficients.size(0);
  return dense(sizes, input.scalar_type());
}

// ---- Fourier transforms.

Tensor complex_to_complex(const Tensor& self, const Dims& dims) {
  return dims.empty() ? like(self) : contiguous_like(self);
}
Tensor complex_to_real(const Tensor& self, const Dims& dims, int64_t, int64_t last_size) {
  Dims sizes(self.sizes());
  sizes[at::maybe_wrap_dim(dims.back(), self.dim())] = last_size;
  return dense(sizes, c10::toRealValueType(self.scalar_type()));
}
Tensor real_to_complex(const Tensor& self, const Dims& dims, int64_t, bool one_sided) {
  Dims sizes(self.sizes());
  int64_t& last = sizes[at::maybe_wrap_dim(dims.back(), self.dim())];
  if (one_sided) last = last / 2 + 1;
  return dense(sizes, c10::toComplexType(self.scalar_type()));
}

}  // namespace

Rules linalg_rules() {
  return {
      {"dot vdot", by<dot>},
      {"mv", by<matrix_vector>},
      {"addbmm", by<sum_of_products>},
      {"_int_mm", by<integer_product>},
      {"_cdist_forward", by<distances>},
      {"_cdist_backward", by<distances_gradient>},
      {"_pdist_forward", by<distances_within>},
      {"_pdist_backward", by<second_contiguous>},
      {"cholesky cholesky_inverse _cholesky_solve_helper linalg_householder_product", by<factor>},
      {"geqrf", by<qr_parts>},
      {"ormqr", by<third_factor>},
      {"linalg_eig", by<eigen>},
      {"_linalg_eigvals linalg_eigvals.out", by<eigenvalues>},
      {"linalg_solve_triangular", by<solution>},
      {"linalg_lstsq.out", by_refusal},  // there are residuals if the rank is full
      {"linalg_matrix_exp", by<contiguous_like>},
      {"_compute_linear_combination", by<combinations>},
      {"_fft_c2c", by<complex_to_complex>},
      {"_fft_c2r", by<complex_to_real>},
      {"_fft_r2c", by<real_to_complex>},
  };
}

}  // namespace accelerate::simulator::shape_rules
