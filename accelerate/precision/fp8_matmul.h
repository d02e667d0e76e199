/// Products of matrices in fp8.
///
/// Where the device multiplies fp8 itself (CUDA from capability 8.9 on) that is used. Elsewhere the
/// same numbers are multiplied in float32: what is emulated is the arithmetic, not its speed.
/// Both add up in float32, scale the sum, add the bias and round once.
#pragma once

#include <ATen/core/Tensor.h>

#include "accelerate/precision/fp8_quantize.h"

namespace accelerate {

/// Whether LibTorch multiplies fp8 on this device: tried once per call, with a small product.
bool has_native_fp8_matmul(c10::Device device);

/// a x b^T + bias. Rows and columns need not be multiples of 16: zeros fill them up where the
/// device asks for that. Shapes: a [M, K], b [N, K], bias [N] or undefined; gives [M, N] in
/// `output`.
at::Tensor fp8_matmul(const Fp8Tensor& a, const Fp8Tensor& b, const at::Tensor& bias,
                      at::ScalarType output, bool native);

/// The same with blocks; always emulated.
at::Tensor fp8_matmul(const MxTensor& a, const MxTensor& b, const at::Tensor& bias,
                      at::ScalarType output);

}  // namespace accelerate
