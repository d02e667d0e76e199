/// One Linear layer in fp8: input x weight^T + bias, and its gradients.
///
///   forward   output   = input [M, K] x weight [N, K]^T     E4M3, E4M3
///   dgrad     of input = gradient [M, N] x weight           E5M2 (HYBRID) or E4M3, E4M3
///   wgrad     of weight= gradient^T x input                 the same
///
/// Each of the three may stay in high precision: then it is what at::linear would compute, bit for
/// bit. Operands are kept for the backward pass as they were quantised, a byte each. High precision
/// and the output are in autocast's type where that is on, else in the input's; the weight's
/// gradient comes in the weight's type. There is no second derivative.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/intrusive_ptr.h>

#include "accelerate/precision/fp8_quantize.h"
#include "accelerate/precision/fp8_scales.h"

namespace accelerate {

/// Where scales come from.
enum class Fp8Scaling {
  kCurrent,  ///< the tensor itself
  kDelayed,  ///< the largest values of past steps
  kBlocks,   ///< a power of two for each 32 values along the sum
};

struct Fp8Recipe {
  Fp8Scaling scaling = Fp8Scaling::kCurrent;
  at::ScalarType gradient_format = kE5M2;
  /// Products that stay in high precision.
  bool override_fprop = false;
  bool override_dgrad = false;
  bool override_wgrad = false;
};

/// What a product must know of its layer; lives as long as graphs that passed through it.
struct Fp8Layer : torch::CustomClassHolder {
  Fp8Recipe recipe;
  /// The device multiplies fp8 itself.
  bool native = false;
  /// Null unless scaling is delayed.
  std::shared_ptr<DelayedScales> scales;
  int64_t index = 0;
};

/// Differentiable in input, weight and bias. Local.
/// `records`: the amax of the tensors counts for later scales.
/// Shapes: input [..., K], weight [N, K], bias [N] or undefined; gives [..., N].
/// Errors: c10::Error in a backward pass with create_graph.
at::Tensor fp8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                      const c10::intrusive_ptr<Fp8Layer>& layer, bool records);

}  // namespace accelerate
