#include "accelerate/quantization/four_bit_linear.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

namespace accelerate {
namespace {

// Sums that do not depend on each other, so that an addition need not wait for the one before.
constexpr int64_t kLanes = 8;

// The two numbers of a byte.
using Pairs = std::array<std::array<float, 2>, 256>;

Pairs pairs_of(const float* map) {
  Pairs pairs;
  for (size_t byte = 0; byte < pairs.size(); ++byte) pairs[byte] = {map[byte >> 4], map[byte & 15]};
  return pairs;
}

// The sums of a block's numbers, each multiplied by its value in each of the rows.
template <int64_t kRows>
std::array<float, kRows> block_products(const uint8_t* bytes, int64_t length, const Pairs& pairs,
                                        const std::array<const float*, kRows>& rows) {
  std::array<std::array<float, kLanes>, kRows> sums{};
  for (int64_t i = 0; i < length; i += kLanes) {
    std::array<float, kLanes> numbers;
    for (int64_t pair = 0; pair < kLanes / 2; ++pair) {
      std::memcpy(&numbers[2 * pair], pairs[bytes[i / 2 + pair]].data(), 2 * sizeof(float));
    }
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        sums[row][lane] += numbers[lane] * rows[row][i + lane];
      }
    }
  }
  std::array<float, kRows> products;
  for (int64_t row = 0; row < kRows; ++row) {
    const std::array<float, kLanes>& own = sums[row];
    products[row] =
        ((own[0] + own[4]) + (own[1] + own[5])) + ((own[2] + own[6]) + (own[3] + own[7]));
  }
  return products;
}

struct Matrix {
  const uint8_t* bytes;
  const float* scales;
  const float* map;
  int64_t out, in, block_size;
};

template <int64_t kRows>
void multiply(const Matrix& weight, const float* input, float* output) {
  const Pairs pairs = pairs_of(weight.map);
  const int64_t blocks = weight.in / weight.block_size;
  for (int64_t out = 0; out < weight.out; ++out) {
    std::array<float, kRows> sums{};
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t index = out * blocks + block;
      std::array<const float*, kRows> rows;
      for (int64_t row = 0; row < kRows; ++row) {
        rows[row] = input + row * weight.in + block * weight.block_size;
      }
      const std::array<float, kRows> products = block_products<kRows>(
          weight.bytes + index * weight.block_size / 2, weight.block_size, pairs, rows);
      for (int64_t row = 0; row < kRows; ++row) sums[row] += weight.scales[index] * products[row];
    }
    for (int64_t row = 0; row < kRows; ++row) output[row * weight.out + out] = sums[row];
  }
}

}  // namespace

namespace internal {

bool is_fused(const FourBitTensor& weight, int64_t rows) {
  return rows > 0 && rows <= kMostFusedRows && weight.data.device().is_cpu() &&
         weight.block_size % kLanes == 0 && weight.sizes[1] % weight.block_size == 0;
}

at::Tensor fused_product(const at::Tensor& rows, const FourBitTensor& weight) {
  const at::Tensor scales = block_absmax_on_host(weight);
  const Matrix matrix = {.bytes = weight.data.const_data_ptr<uint8_t>(),
                         .scales = scales.const_data_ptr<float>(),
                         .map = weight.quant_map.const_data_ptr<float>(),
                         .out = weight.sizes[0],
                         .in = weight.sizes[1],
                         .block_size = weight.block_size};
  at::Tensor output = at::empty({rows.size(0), matrix.out}, rows.options());
  const auto* const from = rows.const_data_ptr<float>();
  auto* const to = output.mutable_data_ptr<float>();
  switch (rows.size(0)) {
    case 1: multiply<1>(matrix, from, to); break;
    case 2: multiply<2>(matrix, from, to); break;
    case 3: multiply<3>(matrix, from, to); break;
    default: multiply<4>(matrix, from, to);
  }
  return output;
}

}  // namespace internal

at::Tensor four_bit_linear(const at::Tensor& input, const FourBitTensor& weight,
                           const at::Tensor& bias) {
  TORCH_CHECK_VALUE(weight.sizes.size() == 2,
                    "four_bit_linear: a matrix is multiplied, not a "
                    "weight of shape ",
                    at::IntArrayRef(weight.sizes));
  TORCH_CHECK_VALUE(input.dim() > 0 && input.size(-1) == weight.sizes[1],
                    "four_bit_linear: an input of shape ", input.sizes(),
                    " does not fit a weight of shape ", at::IntArrayRef(weight.sizes));
  const at::ScalarType dtype = input.scalar_type();
  TORCH_CHECK_VALUE(at::isFloatingType(dtype), "four_bit_linear: the input is of ", dtype,
                    ", which is not floating point");
  TORCH_CHECK_VALUE(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.sizes[0]),
                    "four_bit_linear: a bias of shape ", bias.sizes(),
                    " does not fit a weight of shape ", at::IntArrayRef(weight.sizes));
  std::vector<int64_t> sizes = input.sizes().vec();
  const int64_t columns = sizes.back();
  sizes.pop_back();
  const int64_t rows = c10::multiply_integers(sizes);
  const at::Tensor values = input.detach().reshape({rows, columns});
  sizes.push_back(weight.sizes[0]);
  if (dtype == at::kDouble || !internal::is_fused(weight, rows)) {
    const at::Tensor used = bias.defined() ? bias.detach() : bias;
    return at::linear(values, weight.dequantize(dtype), used).view(sizes);
  }
  at::Tensor output = internal::fused_product(values.to(at::kFloat).contiguous(), weight);
  if (bias.defined()) output.add_(bias.detach());
  return output.to(dtype).view(sizes);
}

}  // namespace accelerate
