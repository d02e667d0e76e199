#include "accelerate/quantization/four_bit.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

namespace accelerate {

using internal::blocks_of;

namespace {

constexpr int64_t kLeastBlock = 32;
constexpr int64_t kLargestBlock = 4096;

void check_block_size(int64_t block_size, const char* what) {
  const bool is_known = block_size >= kLeastBlock && block_size <= kLargestBlock &&
                        std::has_single_bit(static_cast<uint64_t>(block_size));
  TORCH_CHECK_VALUE(is_known, what, ": a block of ", block_size,
                    " values; there are those of 32, 64, 128, 256, 512, 1024, 2048 and 4096");
}

// The scale of the values from `begin` on, which are finite.
float block_scale(const float* values, int64_t count, int64_t begin, const char* what) {
  const float largest = internal::largest_magnitude(values, count);
  if (std::isfinite(largest)) return largest;
  const float* const found =
      std::find_if(values, values + count, [](float value) { return !std::isfinite(value); });
  TORCH_CHECK_VALUE(false, what, ": value ", begin + (found - values), " of the tensor is ", *found,
                    ", which cannot be quantised");
}

template <typename T>
void quantize_blocks(const T* values, int64_t count, FourBitType type, int64_t block_size,
                     uint8_t* bytes, float* absmax) {
  std::array<float, kLargestBlock> block;
  std::array<uint8_t, kLargestBlock> codes;
  for (int64_t begin = 0; begin < count; begin += block_size) {
    int64_t length = std::min(block_size, count - begin);
    for (int64_t i = 0; i < length; ++i) block[i] = static_cast<float>(values[begin + i]);
    const float scale = block_scale(block.data(), length, begin, "quantize_4bit");
    absmax[begin / block_size] = scale;
    if (length % 2 != 0) block[length++] = 0.0f;
    // 0 where it would not be finite: a block of zeros has the code of 0, which stays 0 when double
    // quantisation gives the block another scale.
    const float inverse = std::isfinite(1.0f / scale) ? 1.0f / scale : 0.0f;
    internal::four_bit_codes(type, block.data(), length, inverse, codes.data());
    uint8_t* const pairs = bytes + begin / 2;
    for (int64_t i = 0; i < length / 2; ++i) {
      pairs[i] = static_cast<uint8_t>(codes[2 * i] << 4 | codes[2 * i + 1]);
    }
  }
}

template <typename T>
void dequantize_blocks(const uint8_t* bytes, const float* absmax, const float* map, int64_t count,
                       int64_t block_size, T* values) {
  std::array<T, 16> numbers;
  for (int64_t begin = 0; begin < count; begin += block_size) {
    const int64_t length = std::min(block_size, count - begin);
    const float scale = absmax[begin / block_size];
    for (size_t code = 0; code < numbers.size(); ++code) {
      numbers[code] = static_cast<T>(map[code] * scale);
    }
    const uint8_t* const pairs = bytes + begin / 2;
    T* const block = values + begin;
    for (int64_t i = 0; i < length / 2; ++i) {
      block[2 * i] = numbers[pairs[i] >> 4];
      block[2 * i + 1] = numbers[pairs[i] & 15];
    }
    if (length % 2 != 0) block[length - 1] = numbers[pairs[length / 2] >> 4];
  }
}

// What AT_DISPATCH_FLOATING_TYPES_AND2 has with at::kHalf and at::kBFloat16.
bool is_supported(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf ||
         dtype == at::kBFloat16;
}

template <size_t N>
at::Tensor map_tensor(const std::array<float, N>& map) {
  return at::tensor(at::ArrayRef<float>(map.data(), map.size()));
}

BlockwiseTensor moved(const BlockwiseTensor& tensor, c10::Device device) {
  return {.codes = tensor.codes.to(device),
          .absmax = tensor.absmax.to(device),
          .quant_map = tensor.quant_map.to(device),
          .block_size = tensor.block_size};
}

int64_t nbytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
}

// ---- Products.

// Sums that do not depend on each other, so that an addition need not wait for the one before.
constexpr int64_t kLanes = 8;

// The two numbers of a byte.
using Pairs = std::array<std::array<float, 2>, 256>;

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
  Pairs pairs;
  for (size_t byte = 0; byte < pairs.size(); ++byte) {
    pairs[byte] = {weight.map[byte >> 4], weight.map[byte & 15]};
  }
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

// Without their signs floats are in the order of their bits, with NaN above infinity. The maximum
// of integers is vectorised, which that of floats is not, because of NaN.
float largest_magnitude(const float* values, int64_t count) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<int32_t>(values[i]) & 0x7fffffff);
  }
  return std::bit_cast<float>(largest);
}

void check_quantizable(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_VALUE(is_supported(tensor.scalar_type()), what,
                    ": floating-point values of 16 bits or more are quantised, not ",
                    tensor.scalar_type());
  TORCH_CHECK_VALUE(!tensor.is_meta(), what, ": the tensor is on \"meta\" and has no values");
}

at::Tensor block_absmax_on_host(const FourBitTensor& tensor) {
  if (!tensor.nested) return tensor.absmax;
  const BlockwiseTensor& inner = tensor.nested->differences;
  const float offset = tensor.nested->offset;
  const int64_t count = inner.codes.numel();
  at::Tensor result = at::empty({count}, at::kFloat);
  const auto* const codes = inner.codes.const_data_ptr<uint8_t>();
  const auto* const scales = inner.absmax.const_data_ptr<float>();
  const auto* const map = inner.quant_map.const_data_ptr<float>();
  auto* const absmax = result.mutable_data_ptr<float>();
  for (int64_t begin = 0; begin < count; begin += inner.block_size) {
    const int64_t end = std::min(begin + inner.block_size, count);
    const float scale = scales[begin / inner.block_size];
    for (int64_t i = begin; i < end; ++i) {
      const float difference = map[codes[i]] * scale;
      absmax[i] = difference + offset;
    }
  }
  return result;
}

at::Tensor dequantize_by_operators(const FourBitTensor& tensor, at::ScalarType dtype) {
  const at::Tensor scales = tensor.block_absmax();
  const at::Tensor& map = tensor.quant_map;
  // By byte: its two numbers.
  const at::Tensor pairs = at::stack({map.repeat_interleave(16), map.repeat({16})}, 1);
  const int64_t count = tensor.numel();
  const at::Tensor codes = tensor.data.flatten();
  // In float32, from that value on, which begins a block.
  const auto make = [&](int64_t begin, int64_t length) {
    const int64_t blocks = blocks_of(length, tensor.block_size);
    at::Tensor values =
        pairs.index_select(0, codes.narrow(0, begin / 2, (length + 1) / 2).to(at::kInt)).flatten();
    values = values.narrow(0, 0, length);
    const int64_t padding = blocks * tensor.block_size - length;
    if (padding > 0) values = at::constant_pad_nd(values, {0, padding});
    values = values.view({blocks, tensor.block_size});
    values.mul_(scales.narrow(0, begin / tensor.block_size, blocks).unsqueeze(1));
    return values.flatten().narrow(0, 0, length);
  };
  // Blocks have an even number of values.
  const int64_t step = kValuesAtATime / tensor.block_size * tensor.block_size;
  if (count <= step) return make(0, count).view(tensor.sizes).to(dtype);
  at::Tensor result = at::empty({count}, tensor.data.options().dtype(dtype));
  for (int64_t begin = 0; begin < count; begin += step) {
    const int64_t length = std::min(step, count - begin);
    result.narrow(0, begin, length).copy_(make(begin, length));
  }
  return result.view(tensor.sizes);
}

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

at::Tensor BlockwiseTensor::dequantize() const {
  const int64_t count = codes.numel();
  at::Tensor values = quant_map.index_select(0, codes.flatten().to(at::kInt));
  values.mul_(absmax.repeat_interleave(block_size).narrow(0, 0, count));
  return values.view(codes.sizes());
}

BlockwiseTensor quantize_blockwise(const at::Tensor& tensor, int64_t block_size) {
  constexpr char kWhat[] = "quantize_blockwise";
  internal::check_quantizable(tensor, kWhat);
  check_block_size(block_size, kWhat);
  const at::Tensor host = tensor.detach().cpu().to(at::kFloat).contiguous();
  const int64_t count = host.numel();
  BlockwiseTensor result = {.codes = at::empty(host.sizes(), at::kByte),
                            .absmax = at::empty({blocks_of(count, block_size)}, at::kFloat),
                            .quant_map = map_tensor(dynamic_map()),
                            .block_size = block_size};
  const auto* const values = host.const_data_ptr<float>();
  auto* const codes = result.codes.mutable_data_ptr<uint8_t>();
  auto* const absmax = result.absmax.mutable_data_ptr<float>();
  for (int64_t begin = 0; begin < count; begin += block_size) {
    const int64_t end = std::min(begin + block_size, count);
    const float scale = block_scale(values + begin, end - begin, begin, kWhat);
    absmax[begin / block_size] = scale;
    const float inverse = 1.0f / scale;
    for (int64_t i = begin; i < end; ++i) codes[i] = internal::dynamic_code(values[i] * inverse);
  }
  return moved(result, tensor.device());
}

int64_t FourBitTensor::numel() const { return c10::multiply_integers(sizes); }

at::Tensor FourBitTensor::block_absmax() const {
  return nested ? nested->differences.dequantize().add_(nested->offset) : absmax;
}

at::Tensor FourBitTensor::dequantize(at::ScalarType as) const {
  TORCH_CHECK_VALUE(is_supported(as), "dequantize: values are floating point, not ", as);
  if (!data.device().is_cpu()) return internal::dequantize_by_operators(*this, as);
  const at::Tensor scales = internal::block_absmax_on_host(*this);
  at::Tensor values = at::empty(sizes, data.options().dtype(as));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, as, "dequantize_4bit", [&] {
    dequantize_blocks(data.const_data_ptr<uint8_t>(), scales.const_data_ptr<float>(),
                      quant_map.const_data_ptr<float>(), values.numel(), block_size,
                      values.mutable_data_ptr<scalar_t>());
  });
  return values;
}

FourBitTensor FourBitTensor::to(c10::Device device) const {
  FourBitTensor result = *this;
  result.data = data.to(device);
  if (absmax.defined()) result.absmax = absmax.to(device);
  if (nested) result.nested->differences = moved(nested->differences, device);
  result.quant_map = quant_map.to(device);
  return result;
}

int64_t FourBitTensor::nbytes() const {
  int64_t bytes = nbytes_of(data) + nbytes_of(absmax) + nbytes_of(quant_map);
  if (nested) {
    const BlockwiseTensor& inner = nested->differences;
    bytes += nbytes_of(inner.codes) + nbytes_of(inner.absmax) + nbytes_of(inner.quant_map);
  }
  return bytes;
}

FourBitTensor quantize_4bit(const at::Tensor& tensor, const FourBitOptions& options) {
  internal::check_quantizable(tensor, "quantize_4bit");
  check_block_size(options.block_size, "quantize_4bit");
  const at::Tensor host = tensor.detach().cpu().contiguous();
  const int64_t count = host.numel();
  FourBitTensor result = {
      .type = options.type,
      .sizes = host.sizes().vec(),
      .dtype = host.scalar_type(),
      .data = at::empty({(count + 1) / 2, 1}, at::kByte),
      .absmax = at::empty({blocks_of(count, options.block_size)}, at::kFloat),
      .quant_map = map_tensor(four_bit_map(options.type)),
      .block_size = options.block_size,
  };
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, host.scalar_type(), "quantize_4bit", [&] {
        quantize_blocks(host.const_data_ptr<scalar_t>(), count, options.type, options.block_size,
                        result.data.mutable_data_ptr<uint8_t>(),
                        result.absmax.mutable_data_ptr<float>());
      });
  if (options.use_double_quant) {
    // The mean, in float64 and in order, so that it is the same on every machine.
    const auto* const scales = result.absmax.const_data_ptr<float>();
    const int64_t blocks = std::max<int64_t>(result.absmax.numel(), 1);
    const double sum = std::accumulate(scales, scales + result.absmax.numel(), 0.0);
    const auto offset = static_cast<float>(sum / static_cast<double>(blocks));
    result.nested = NestedAbsmax{
        quantize_blockwise(result.absmax.sub(offset), options.nested_block_size), offset};
    result.absmax = at::Tensor();
  }
  return result.to(tensor.device());
}

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
