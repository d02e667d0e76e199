/// Packs an Adam optimizer's moments between its steps (MS-AMP's level O2): into three bytes per
/// parameter and eight per 128 parameters, instead of eight per parameter.
///
///   first moment    E4M3
///   second moment   its square root in fp16
///
/// Each block of 128 values has a power of two as scale. Rounding is dithered, so that moments are
/// right on average: rounded to the nearest, a moving average in few bits stops short of its limit.
/// The direction depends on the optimizer's step and the position in the tensor only, so runs are
/// reproducible, and packing unpacked moments again changes nothing. With a constant gradient each
/// update is within a sixth of float32's, and within a hundredth on average.
/// In a block a root is never 0, but at least a billionth of the largest; a first moment below
/// about a millionth of the largest may become 0. So an outlier slows its neighbours down until it
/// has decayed, and does not make them diverge.
///
/// Between steps the optimizer has no moments: call unpack() before `optimizer.save()` and pack()
/// after it. unpack() rejects a loaded state that was saved while the moments were packed. Loading
/// needs neither call. amsgrad's maximum stays in float32.
/// Source: Peng et al., "FP8-LM: Training FP8 Large Language Models", 2023.
/// Threads: those of the optimizer.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace accelerate {

class Fp8Moments {
 public:
  /// `optimizer` outlives this. Errors: c10::ValueError unless it is an Adam or AdamW.
  explicit Fp8Moments(torch::optim::Optimizer& optimizer);

  /// Packs the optimizer's moments; those that are packed already stay so. Until unpack() the
  /// optimizer has no moments for these parameters, and must not step or be saved. Local.
  void pack();
  /// Gives the optimizer its moments back in float32. Moments that it got meanwhile, by `load()`,
  /// replace packed ones. Local.
  /// Errors: c10::ValueError if a parameter's state has no moments and none are packed either: it
  ///         was saved while they were packed.
  void unpack();

  /// The size of all packed moments.
  int64_t packed_bytes() const;

 private:
  // A tensor's values, flat, and the scale of each block.
  struct Blocks {
    at::Tensor data, scales;
  };
  struct Packed {
    const torch::optim::OptimizerParamState* state;  // the owner of the moments
    std::vector<int64_t> sizes;
    Blocks first, second_root;
  };

  static Blocks round(const at::Tensor& tensor, at::ScalarType type, int64_t step);
  static at::Tensor restore(const Blocks& blocks, at::IntArrayRef sizes);
  void forget_replaced();

  torch::optim::Optimizer& optimizer_;
  std::unordered_map<void*, Packed> packed_;  // by the optimizer's own key
};

}  // namespace accelerate
