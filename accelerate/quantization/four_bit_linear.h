/// Products with weights in 4 bits.
///
///   FourBitTensor packed = quantize_4bit(weight, {.type = FourBitType::kNf4});
///   at::Tensor output = four_bit_linear(input, packed, bias);
///
/// A few rows of input on the host are multiplied by the packed weight as it is read, block by
/// block, in float32, and the output is rounded once. Any other input is multiplied by the weight's
/// values in the input's dtype, which are made for this product and freed after it. With float32
/// both are the same but for the order of sums; with 16 bits the former does not round the weight's
/// values.
///
/// Local. There are no gradients.
/// Errors:  c10::ValueError for shapes that do not fit, and dtypes that are not floating point.
/// Threads: pure function.
/// Mirrors: bitsandbytes autograd/_functions.py, matmul_4bit; functional.py, gemv_4bit.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "accelerate/quantization/four_bit.h"

namespace accelerate {

/// input x weight^T + bias.
/// Shapes: weight [out, in], input [..., in], bias [out] or undefined; [..., out] in the input's
/// dtype.
at::Tensor four_bit_linear(const at::Tensor& input, const FourBitTensor& weight,
                           const at::Tensor& bias);

namespace internal {

/// The most rows of an input that are multiplied by the packed weight.
inline constexpr int64_t kMostFusedRows = 4;

/// Whether four_bit_linear() multiplies so many rows by the packed weight: on the host, where
/// blocks have eights of values and none has those of two rows of the weight.
bool is_fused(const FourBitTensor& weight, int64_t rows);

/// Shapes: rows [1 to 4, in], float32 and contiguous; [the same, out] in float32.
at::Tensor fused_product(const at::Tensor& rows, const FourBitTensor& weight);

}  // namespace internal
}  // namespace accelerate
