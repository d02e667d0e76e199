#include "accelerate/precision/fp8_matmul.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

namespace accelerate {
namespace {

// What the device's units ask of each dimension.
constexpr int64_t kAlignment = 16;

// Zeros up to multiples of 16, row by row.
at::Tensor aligned(const at::Tensor& data) {
  const auto missing = [&](int64_t dim) {
    return (kAlignment - data.size(dim) % kAlignment) % kAlignment;
  };
  const int64_t rows = missing(0), cols = missing(1);
  if (rows == 0 && cols == 0) return data.contiguous();
  // Zero is the byte 0 in both formats.
  return at::constant_pad_nd(data.view(at::kByte), {0, cols, 0, rows}).view(data.scalar_type());
}

at::Tensor finish(at::Tensor product, const at::Tensor& bias, at::ScalarType output) {
  if (bias.defined()) product += bias;
  return product.to(output);
}

at::Tensor native_matmul(const Fp8Tensor& a, const Fp8Tensor& b, const at::Tensor& bias,
                         at::ScalarType output) {
  const int64_t rows = a.data.size(0), cols = b.data.size(0);
  const at::Tensor product =
      at::_scaled_mm(aligned(a.data), aligned(b.data).t(), a.inverse_scale, b.inverse_scale,
                     /*bias=*/{}, /*scale_result=*/{}, at::kFloat);
  return finish(product.narrow(0, 0, rows).narrow(1, 0, cols), bias, output);
}

}  // namespace

bool has_native_fp8_matmul(c10::Device device) {
  if (!device.is_cuda()) return false;
  try {
    const at::Tensor zeros =
        at::zeros({kAlignment, kAlignment}, at::TensorOptions(device).dtype(at::kByte)).view(kE4M3);
    const at::Tensor one = at::ones({}, at::TensorOptions(device).dtype(at::kFloat));
    at::_scaled_mm(zeros, zeros.t(), one, one, /*bias=*/{}, /*scale_result=*/{}, at::kFloat);
    return true;
  } catch (const c10::Error&) {
    return false;  // an older device, or a build without it
  }
}

at::Tensor fp8_matmul(const Fp8Tensor& a, const Fp8Tensor& b, const at::Tensor& bias,
                      at::ScalarType output, bool native) {
  if (native) return native_matmul(a, b, bias, output);
  at::Tensor product = at::mm(a.data.to(at::kFloat), b.data.to(at::kFloat).t());
  return finish(product.mul_(a.inverse_scale * b.inverse_scale), bias, output);
}

at::Tensor fp8_matmul(const MxTensor& a, const MxTensor& b, const at::Tensor& bias,
                      at::ScalarType output) {
  return finish(at::mm(a.dequantize(), b.dequantize().t()), bias, output);
}

}  // namespace accelerate
