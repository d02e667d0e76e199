#include "accelerate/precision/fp8_quantize.h"

#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/frexp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace accelerate {
namespace {

constexpr double kE4M3Max = 448;
constexpr double kE5M2Max = 57344;
constexpr int64_t kExponentBias = 127;
constexpr int64_t kExponentNan = 255;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// 448 = 7/8 x 2^9, 57344 = 7/8 x 2^16.
constexpr double kLastFraction = 0.875;
constexpr int64_t kE4M3Power = 9;
constexpr int64_t kE5M2Power = 16;

}  // namespace

double fp8_max(at::ScalarType format) {
  TORCH_CHECK_VALUE(format == kE4M3 || format == kE5M2, "fp8: ", format,
                    " is neither Float8_e4m3fn nor Float8_e5m2");
  return format == kE4M3 ? kE4M3Max : kE5M2Max;
}

at::Tensor fp8_amax(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return at::zeros({}, tensor.options().dtype(at::kFloat));
  return at::amax(tensor.detach().abs()).to(at::kFloat);
}

at::Tensor fp8_scale(const at::Tensor& amax, at::ScalarType format) {
  return at::full({}, fp8_max(format), amax.options()) / amax.clamp_min(kLeastFp8Amax);
}

at::Tensor fp8_cast(const at::Tensor& tensor, const at::Tensor& scale, at::ScalarType format) {
  const double limit = fp8_max(format);
  return (tensor.to(at::kFloat) * scale).clamp_(-limit, limit).to(format);
}

at::Tensor Fp8Tensor::dequantize() const { return data.to(at::kFloat) * inverse_scale; }

Fp8Tensor fp8_quantize(const at::Tensor& tensor, at::ScalarType format) {
  const at::Tensor amax = fp8_amax(tensor);
  return fp8_quantize(tensor, fp8_scale(amax, format), amax, format);
}

Fp8Tensor fp8_quantize(const at::Tensor& tensor, const at::Tensor& scale, const at::Tensor& amax,
                       at::ScalarType format) {
  // amax - amax is 0, or NaN where amax is not finite.
  return {fp8_cast(tensor, scale, format), scale.reciprocal().add_(amax - amax)};
}

at::Tensor MxTensor::dequantize() const {
  const at::Tensor exponents_of_blocks = exponents.to(at::kFloat) - kExponentBias;
  const at::Tensor factors =
      at::where(exponents == kExponentNan, at::Scalar(kNan), at::exp2(exponents_of_blocks));
  return data.to(at::kFloat) * factors.repeat_interleave(kMxBlock, 1).narrow(1, 0, data.size(1));
}

MxTensor mx_quantize(const at::Tensor& tensor, at::ScalarType format) {
  TORCH_CHECK_VALUE(tensor.dim() == 2, "mx_quantize: a matrix is needed, not ", tensor.dim(),
                    " dimensions");
  const int64_t rows = tensor.size(0), cols = tensor.size(1);
  const int64_t blocks = (cols + kMxBlock - 1) / kMxBlock;
  at::Tensor values = tensor.detach().to(at::kFloat);
  if (blocks * kMxBlock != cols)
    values = at::constant_pad_nd(values, {0, blocks * kMxBlock - cols});
  values = values.reshape({rows, blocks, kMxBlock});
  const at::Tensor amax = blocks == 0 ? values.sum(2) : values.abs().amax(2);
  // Both formats end at 7/8 of a power of two.
  const auto [fraction, power] = at::frexp(amax);
  const int64_t last_power = format == kE4M3 ? kE4M3Power : kE5M2Power;
  at::Tensor exponent = power + at::where(fraction > kLastFraction, 1, 0) - last_power;
  exponent = at::where(amax == 0, -kExponentBias, exponent).clamp_(-kExponentBias, kExponentBias);
  const at::Tensor scale = at::exp2(-exponent.to(at::kFloat)).unsqueeze(2);
  const double limit = fp8_max(format);
  const at::Tensor data = (values * scale).clamp_(-limit, limit).to(format);
  return {data.reshape({rows, blocks * kMxBlock}).narrow(1, 0, cols),
          at::where(amax.isfinite(), exponent + kExponentBias, kExponentNan).to(at::kByte)};
}

}  // namespace accelerate
