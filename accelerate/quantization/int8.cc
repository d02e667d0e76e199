#include "accelerate/quantization/int8.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_int_mm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include "accelerate/quantization/four_bit.h"

namespace accelerate {
namespace {

constexpr float kLargestCode = 127;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A sum of so many products of codes, each at most 128 x 128, is at most 2^24: float32 has all
// integers up to there.
constexpr int64_t kExactColumns = 1024;
// And of so many, with codes from -127 on, fits an int32.
constexpr int64_t kMostColumns = int64_t{1} << 17;

// The factor from values to codes. 0 where it would not be finite: all values are then too small
// to differ from 0.
float factor_of(float absmax) {
  const float factor = 1.0f / absmax * kLargestCode;
  return std::isfinite(factor) ? factor : 0.0f;
}

void row_codes(const float* values, int64_t count, float factor, int8_t* codes) {
  // Adding it leaves no bits for a fraction: the sum is rounded to an integer, ties to even.
  constexpr float kRounding = 12582912.0f;  // 1.5 x 2^23
  for (int64_t i = 0; i < count; ++i) {
    const float scaled = values[i] * factor;
    const float shifted = scaled + kRounding;
    codes[i] = static_cast<int8_t>(static_cast<int32_t>(shifted - kRounding));
  }
}

void check_matrix(const at::Tensor& tensor, const char* what) {
  internal::check_quantizable(tensor, what);
  TORCH_CHECK_VALUE(tensor.dim() == 2, what, ": a matrix is quantised, not a tensor of shape ",
                    tensor.sizes());
}

bool has_int8_product(c10::Device device) {
  static const auto product = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_int_mm", "");
  return product.hasKernelForDispatchKey(c10::computeDispatchKey(at::kChar, std::nullopt, device));
}

int64_t rounded_up(int64_t number, int64_t step) { return (number + step - 1) / step * step; }

// cuBLASLt's product has more than 16 rows, and multiples of 8 for the other sizes.
at::Tensor padded_int8_product(const at::Tensor& a, const at::Tensor& b) {
  const int64_t rows = std::max<int64_t>(a.size(0), 17);
  const int64_t inner = rounded_up(a.size(1), 8);
  const int64_t columns = rounded_up(b.size(0), 8);
  const auto padded = [inner](const at::Tensor& codes, int64_t size) {
    const int64_t right = inner - codes.size(1), below = size - codes.size(0);
    return right == 0 && below == 0 ? codes : at::constant_pad_nd(codes, {0, right, 0, below});
  };
  return at::_int_mm(padded(a, rows), padded(b, columns).t())
      .narrow(0, 0, a.size(0))
      .narrow(1, 0, b.size(0));
}

// The columns with an absolute value of at least the threshold; 1 for those.
std::vector<uint8_t> outliers_of(const float* values, int64_t rows, int64_t columns,
                                 double threshold) {
  std::vector<uint8_t> is_outlier(static_cast<size_t>(columns), 0);
  if (threshold == 0) return is_outlier;
  const auto limit = static_cast<float>(threshold);
  for (int64_t row = 0; row < rows; ++row) {
    const float* const own = values + row * columns;
    for (int64_t i = 0; i < columns; ++i) {
      is_outlier[i] |= std::abs(own[i]) >= limit ? uint8_t{1} : uint8_t{0};
    }
  }
  return is_outlier;
}

Int8Rows quantize_rows_on_host(const at::Tensor& input, double threshold) {
  const at::Tensor host = input.detach().to(at::kFloat).contiguous();
  const int64_t rows = host.size(0), columns = host.size(1);
  const auto* const values = host.const_data_ptr<float>();
  const std::vector<uint8_t> is_outlier = outliers_of(values, rows, columns, threshold);
  std::vector<int64_t> outliers;
  for (int64_t i = 0; i < columns; ++i) {
    if (is_outlier[i] != 0) outliers.push_back(i);
  }
  Int8Rows result = {.data = at::zeros({rows, columns}, at::kChar),
                     .absmax = at::empty({rows}, at::kFloat),
                     .outlier_columns = at::tensor(at::ArrayRef<int64_t>(outliers))};
  auto* const codes = result.data.mutable_data_ptr<int8_t>();
  auto* const absmax = result.absmax.mutable_data_ptr<float>();
  std::vector<float> kept(static_cast<size_t>(columns));
  for (int64_t row = 0; row < rows; ++row) {
    const float* const own = values + row * columns;
    for (int64_t i = 0; i < columns; ++i) kept[i] = is_outlier[i] != 0 ? 0.0f : own[i];
    const float largest = internal::largest_magnitude(kept.data(), columns);
    absmax[row] = std::isfinite(largest) ? largest : kNan;
    if (!std::isfinite(largest)) continue;
    row_codes(kept.data(), columns, factor_of(largest), codes + row * columns);
  }
  return result;
}

}  // namespace

at::Tensor Int8Weight::dequantize(at::ScalarType dtype) const {
  // The largest code gives scb back, so that values are quantised to the same codes again.
  return data.to(at::kFloat).div_(kLargestCode).mul_(scb.unsqueeze(1)).to(dtype);
}

Int8Weight Int8Weight::to(c10::Device device) const {
  return {.data = data.to(device), .scb = scb.to(device)};
}

int64_t Int8Weight::nbytes() const { return static_cast<int64_t>(data.nbytes() + scb.nbytes()); }

Int8Weight quantize_rowwise(const at::Tensor& weight) {
  check_matrix(weight, "quantize_rowwise");
  const at::Tensor host = weight.detach().cpu().contiguous();
  const int64_t rows = host.size(0), columns = host.size(1);
  const Int8Weight result = {.data = at::empty({rows, columns}, at::kChar),
                             .scb = at::empty({rows}, at::kFloat)};
  auto* const codes = result.data.mutable_data_ptr<int8_t>();
  auto* const scb = result.scb.mutable_data_ptr<float>();
  std::vector<float> values(static_cast<size_t>(columns));
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, host.scalar_type(), "quantize_rowwise", [&] {
        const auto* const all = host.const_data_ptr<scalar_t>();
        for (int64_t row = 0; row < rows; ++row) {
          const scalar_t* const own = all + row * columns;
          for (int64_t i = 0; i < columns; ++i) values[i] = static_cast<float>(own[i]);
          scb[row] = internal::largest_magnitude(values.data(), columns);
          TORCH_CHECK_VALUE(std::isfinite(scb[row]), "quantize_rowwise: row ", row,
                            " has a value that is infinite or NaN, which cannot be quantised");
          row_codes(values.data(), columns, factor_of(scb[row]), codes + row * columns);
        }
      });
  return result.to(weight.device());
}

Int8Rows quantize_rows(const at::Tensor& input, double threshold) {
  check_matrix(input, "quantize_rows");
  TORCH_CHECK_VALUE(threshold >= 0, "int8: the threshold of outliers is ", threshold,
                    ", which is not 0 or more");
  return input.device().is_cpu() ? quantize_rows_on_host(input, threshold)
                                 : internal::quantize_rows_by_operators(input, threshold);
}

at::Tensor int8_matmul(const at::Tensor& a, const at::Tensor& b) {
  const bool fits = a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(1) &&
                    a.scalar_type() == at::kChar && b.scalar_type() == at::kChar;
  TORCH_CHECK_VALUE(fits, "int8_matmul: two matrices of int8 have equally many columns, not ",
                    a.scalar_type(), a.sizes(), " and ", b.scalar_type(), b.sizes());
  TORCH_CHECK_VALUE(a.size(1) <= kMostColumns, "int8_matmul: sums of ", a.size(1),
                    " products may overflow; at most ", kMostColumns, " are possible");
  if (a.numel() == 0 || b.numel() == 0 || !has_int8_product(a.device())) {
    return internal::int8_matmul_in_float(a, b);
  }
  return a.device().is_cuda() ? padded_int8_product(a, b) : at::_int_mm(a, b.t());
}

at::Tensor int8_linear(const at::Tensor& input, const Int8Weight& weight, const at::Tensor& bias,
                       double threshold) {
  TORCH_CHECK_VALUE(input.dim() > 0 && input.size(-1) == weight.data.size(1),
                    "int8_linear: an input of shape ", input.sizes(),
                    " does not fit a weight of shape ", weight.data.sizes());
  TORCH_CHECK_VALUE(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.data.size(0)),
                    "int8_linear: a bias of shape ", bias.sizes(),
                    " does not fit a weight of shape ", weight.data.sizes());
  std::vector<int64_t> sizes = input.sizes().vec();
  const int64_t columns = sizes.back();
  sizes.pop_back();
  const at::Tensor values = input.detach().reshape({c10::multiply_integers(sizes), columns});
  const Int8Rows rows = quantize_rows(values, threshold);
  const at::Tensor row_factors = rows.absmax.div(kLargestCode).unsqueeze(1);
  const at::Tensor weight_factors = weight.scb.div(kLargestCode);
  at::Tensor output =
      int8_matmul(rows.data, weight.data).to(at::kFloat).mul_(row_factors).mul_(weight_factors);
  if (rows.outlier_columns.numel() > 0) {
    const at::Tensor kept = values.index_select(1, rows.outlier_columns).to(at::kFloat);
    const Int8Weight used = {.data = weight.data.index_select(1, rows.outlier_columns),
                             .scb = weight.scb};
    output.addmm_(kept, used.dequantize(values.scalar_type()).to(at::kFloat).t());
  }
  if (bias.defined()) output.add_(bias.detach());
  sizes.push_back(weight.data.size(0));
  return output.to(input.scalar_type()).view(sizes);
}

namespace internal {

Int8Rows quantize_rows_by_operators(const at::Tensor& input, double threshold) {
  at::Tensor values = input.detach().to(at::kFloat);
  Int8Rows result;
  if (threshold > 0) {
    const at::Tensor is_outlier = values.abs().ge(threshold).any(0);
    result.outlier_columns = is_outlier.nonzero().flatten();
    values = values.masked_fill(is_outlier, 0);
  } else {
    result.outlier_columns = at::empty({0}, values.options().dtype(at::kLong));
  }
  const at::Tensor absmax = values.size(1) == 0 ? values.sum(1) : values.abs().amax(1);
  const at::Tensor is_finite = absmax.isfinite();
  at::Tensor factors = absmax.reciprocal().mul_(kLargestCode);
  factors = at::where(factors.isfinite().logical_and_(is_finite), factors, at::Scalar(0));
  // Infinity x 0 is NaN.
  result.data = values.mul(factors.unsqueeze(1)).nan_to_num_(0, 0, 0).round_().to(at::kChar);
  result.absmax = at::where(is_finite, absmax, at::Scalar(kNan));
  return result;
}

at::Tensor int8_matmul_in_float(const at::Tensor& a, const at::Tensor& b) {
  const int64_t columns = a.size(1);
  at::Tensor sums = at::zeros({a.size(0), b.size(0)}, a.options().dtype(at::kInt));
  for (int64_t begin = 0; begin < columns; begin += kExactColumns) {
    const int64_t length = std::min(kExactColumns, columns - begin);
    const at::Tensor left = a.narrow(1, begin, length).to(at::kFloat);
    const at::Tensor right = b.narrow(1, begin, length).to(at::kFloat);
    sums.add_(at::mm(left, right.t()).to(at::kInt));
  }
  return sums;
}

}  // namespace internal
}  // namespace accelerate
