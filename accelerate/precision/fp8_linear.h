/// One Linear layer in fp8: input x weight^T + bias, and its gradients.
///
///   forward   output   = input [M, K] x weight [N, K]^T     E4M3, E4M3
///   dgrad     of input = gradient [M, N] x weight           E5M2 (HYBRID) or E4M3, E4M3
///   wgrad     of weight= gradient^T x input                 the same
///
/// Each of the three products may stay in high precision, where it equals at::linear's bit for bit.
/// The backward pass keeps quantised operands, one byte per element. High precision means
/// autocast's type if autocast is on, otherwise the input's type; the output has the same type. The
/// weight's gradient has the weight's type. There is no second derivative.
///
/// A device that multiplies fp8 itself (CUDA from capability 8.9 on) does so. Elsewhere the same
/// numbers are multiplied in float32, which emulates the arithmetic but not its speed. Both sum in
/// float32, scale the sum, add the bias and round once.
///
/// Local. Threads: any; a layer's delayed scales belong to one thread at a time.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include "accelerate/precision/fp8_quantize.h"
#include "accelerate/precision/fp8_scales.h"

namespace accelerate {

/// Where a tensor's scale comes from.
enum class Fp8Scaling {
  kCurrent,  ///< the tensor's own largest value
  kDelayed,  ///< the largest values of past steps
  kBlocks,   ///< each block of 32 values along the summed dimension has a power of two
};

struct Fp8Recipe {
  Fp8Scaling scaling = Fp8Scaling::kCurrent;
  at::ScalarType gradient_format = kE5M2;
  /// Products that stay in high precision.
  bool override_fprop = false;
  bool override_dgrad = false;
  bool override_wgrad = false;
};

/// How a layer's products are computed. Graphs that went through the layer keep it alive.
struct Fp8Layer : torch::CustomClassHolder {
  Fp8Recipe recipe;
  /// Whether the device multiplies fp8 itself.
  bool native = false;
  /// Null unless scaling is delayed.
  std::shared_ptr<DelayedScales> scales;
  int64_t index = 0;
};

/// Tries whether LibTorch multiplies fp8 on this device, with a small product.
bool has_native_fp8_matmul(c10::Device device);

/// Differentiable in input, weight and bias.
/// `records`: whether the tensors' amax is recorded for later scales.
/// Shapes: input [..., K], weight [N, K], bias [N] or undefined; result [..., N].
/// Errors: c10::Error in a backward pass with create_graph.
at::Tensor fp8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                      const c10::intrusive_ptr<Fp8Layer>& layer, bool records);

}  // namespace accelerate
