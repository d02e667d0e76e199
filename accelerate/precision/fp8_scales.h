/// Delayed scaling: scales computed from the largest absolute values ("amax") of past steps.
///
///   scale = fp8_max / (amax x 2^margin)      amax: the largest of the history, or its newest
///
/// A scale is unchanged if the amax is 0, or is not finite on some rank. Scales are 1 during the
/// first step. One tensor holds all layers' values, so ranks agree in one collective per step.
///
/// Threads: one at a time.
/// Mirrors: the DelayedScaling recipe of NVIDIA's Transformer Engine.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/precision/fp8_quantize.h"

namespace c10d {
class ProcessGroup;
}  // namespace c10d

namespace accelerate {

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
