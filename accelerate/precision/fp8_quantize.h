/// Casting to 8-bit floating point and back.
///
///   E4M3  4 bits of exponent, 3 of fraction: up to 448, no infinity. Values and weights.
///   E5M2  5 bits of exponent, 2 of fraction: up to 57344. Gradients.
///
/// A tensor is multiplied by a scale that maps its largest value to the format's largest, rounded
/// to the nearest number with ties to even, and saturated. A product is divided by both scales. A
/// tensor with an infinity or NaN gets the inverse scale NaN, so the whole product is NaN.
///
/// Local. Threads: pure functions.
/// Source: Micikevicius et al., "FP8 formats for deep learning", 2022; OCP Microscaling
///         Formats 1.0.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace accelerate {

inline constexpr at::ScalarType kE4M3 = at::kFloat8_e4m3fn;
inline constexpr at::ScalarType kE5M2 = at::kFloat8_e5m2;
/// Values that share a scale in MXFP8.
inline constexpr int64_t kMxBlock = 32;
/// The lower bound of amax, so that neither a scale nor its inverse leaves float32.
inline constexpr double kLeastFp8Amax = 1e-30;

/// 448 or 57344. Errors: c10::ValueError for another type.
double fp8_max(at::ScalarType format);

/// The largest absolute value: a scalar in float32 on the tensor's device; 0 for an empty tensor,
/// NaN if the tensor has one.
at::Tensor fp8_amax(const at::Tensor& tensor);

/// fp8_max / amax, elementwise in float32; large and finite for an amax of 0.
at::Tensor fp8_scale(const at::Tensor& amax, at::ScalarType format);

/// A tensor in fp8 with its scale: values = data / scale.
struct Fp8Tensor {
  at::Tensor data;
  /// 1 / scale: a scalar in float32.
  at::Tensor inverse_scale;

  /// In float32.
  at::Tensor dequantize() const;
};

/// Rounds tensor x scale to `format`.
at::Tensor fp8_cast(const at::Tensor& tensor, const at::Tensor& scale, at::ScalarType format);

/// Uses the tensor's own scale.
Fp8Tensor fp8_quantize(const at::Tensor& tensor, at::ScalarType format);

/// Uses a given scale. `amax` is the tensor's own: if it is not finite, the inverse scale is NaN.
Fp8Tensor fp8_quantize(const at::Tensor& tensor, const at::Tensor& scale, const at::Tensor& amax,
                       at::ScalarType format);

/// Blocks of 32 values along the last dimension, each with a power of two as scale: the smallest
/// with which none of them saturates.
struct MxTensor {
  /// [rows, cols] in fp8.
  at::Tensor data;
  /// [rows, ceil(cols / 32)] in uint8: a block's values are data x 2^(exponent - 127). 255 marks a
  /// block with a value that is not finite.
  at::Tensor exponents;

  /// In float32.
  at::Tensor dequantize() const;
};

/// Shapes: tensor [rows, cols].
MxTensor mx_quantize(const at::Tensor& tensor, at::ScalarType format);

}  // namespace accelerate
