/// An Adam optimizer's moments in few bits between its steps (MS-AMP's level O2): three bytes per
/// parameter instead of eight.
///
///   first moment    E4M3
///   second moment   fp16
///
/// each with a power of two per tensor as scale, so that packing what was unpacked changes nothing.
/// For the time of a step, and of saving or loading, they are float32: unpack before, pack after.
/// What a second moment loses below a millionth of its tensor's largest root the first moment has
/// lost as well, so no update grows by it.
/// Source: Peng et al., "FP8-LM: Training FP8 Large Language Models", 2023.
/// Threads: those of the optimizer.
#pragma once

#include <cstdint>
#include <unordered_map>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace accelerate {

class Fp8Moments {
 public:
  /// `optimizer` outlives this. Errors: c10::ValueError unless it is an Adam or AdamW.
  explicit Fp8Moments(torch::optim::Optimizer& optimizer);

  /// Replaces the moments that there are; those that are packed already stay. The optimizer has no
  /// moments for these parameters until they are unpacked: it must not step or be saved.
  void pack();
  /// Makes them float32 again; nothing to do where they are.
  void unpack();

  /// What packed moments take.
  int64_t packed_bytes() const;

 private:
  struct Packed {
    at::Tensor first, first_scale, second, second_scale;
  };

  torch::optim::Optimizer& optimizer_;
  std::unordered_map<void*, Packed> packed_;  // by the optimizer's own key
};

}  // namespace accelerate
