/// Casting to 8-bit floating point and back, and the scales for it.
///
///   E4M3  4 bits of exponent, 3 of fraction: up to 448, no infinity. Values and weights.
///   E5M2  5 bits of exponent, 2 of fraction: up to 57344. Gradients.
///
/// A tensor is multiplied by a scale that maps its largest value to the format's largest, rounded
/// to the nearest number with ties to even, and saturated. A product is divided by both scales. A
/// tensor with an infinity or NaN gets the inverse scale NaN, so the whole product is NaN.
///
/// Local, but for DelayedScales::begin_step.
/// Threads: pure functions; DelayedScales belong to one thread at a time.
/// Source: Micikevicius et al., "FP8 formats for deep learning", 2022; OCP Microscaling
///         Formats 1.0.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/base/libtorch_fwd.h"

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

/// The largest amaxes over the ranks of `group`, or this rank's if it is null. NaN, which has no
/// order, becomes infinity, so that all ranks reach the same decision. Collective over `group`.
at::Tensor amax_of_ranks(const at::Tensor& amax, c10d::ProcessGroup* group);

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

/// The tensors of a layer.
enum class Fp8Role { kInput, kWeight, kGradient };

struct DelayedScalingOptions {
  int64_t margin = 0;
  /// Steps between two computations of the scales.
  int64_t interval = 1;
  int64_t amax_history_len = 1024;
  /// Use the largest amax of the history instead of the newest.
  bool use_max = false;
  at::ScalarType gradient_format = kE5M2;
};

/// Delayed scaling: scales computed from the largest absolute values ("amax") of past steps.
///
///   scale = fp8_max / (amax x 2^margin)      amax: the largest of the history, or its newest
///
/// A scale is unchanged if the amax is 0, or is not finite on some rank. Scales are 1 during the
/// first step. One tensor holds all layers' values, so ranks agree in one collective per step.
///
/// Mirrors: the DelayedScaling recipe of NVIDIA's Transformer Engine.
class DelayedScales {
 public:
  /// Errors: c10::ValueError for options out of range.
  DelayedScales(int64_t num_layers, const DelayedScalingOptions& options);

  /// Moves all values to the device that uses them.
  void to(c10::Device device);

  /// A scalar in float32, valid until the next step.
  const at::Tensor& scale(int64_t layer, Fp8Role role) const;

  /// Records a tensor's amax; the largest of a step counts. Nothing is copied to the host.
  void record(int64_t layer, Fp8Role role, const at::Tensor& amax);

  /// Begins a step: adds what was recorded since the last one to the history and recomputes the
  /// scales. Collective over `group`, local if it is null. That includes the first step, because
  /// another rank may have made steps of its own before.
  void begin_step(c10d::ProcessGroup* group);

  /// Copies on the CPU: "scales" [layers, 3], "amax" [layers, 3], "history" [length, layers, 3]
  /// and "steps" [1]. Local.
  std::map<std::string, at::Tensor> state_dict() const;
  /// Errors: c10::ValueError that names a missing entry or a wrong shape; nothing is changed.
  void load_state_dict(const std::map<std::string, at::Tensor>& state);

 private:
  static constexpr int64_t kRoles = 3;
  using Views = std::vector<at::Tensor>;

  void set_scales(at::Tensor scales);
  void set_amax(at::Tensor amax);

  const DelayedScalingOptions options_;
  at::Tensor formats_max_;  // [3]
  at::Tensor scales_;       // [layers, 3]
  at::Tensor amax_;         // [layers, 3], of this step
  at::Tensor history_;      // [length, layers, 3], a ring
  Views scale_views_, amax_views_;
  int64_t steps_ = 0;  // steps begun
};

}  // namespace accelerate
