/// An Adam optimizer's moments in few bits between its steps (MS-AMP's level O2): three bytes per
/// parameter, and eight for each 128 of them, instead of eight each.
///
///   first moment    E4M3
///   second moment   its square root in fp16
///
/// each with a power of two per 128 values as scale. Rounding goes up or down as often as it takes
/// for moments to be right on average, for an average in few bits that is rounded to the nearest
/// stops short of where it goes. Which way follows from the optimizer's step and the place in the
/// tensor, so a run repeats itself; packing what was unpacked changes nothing. A constant gradient
/// gives float32's updates within a sixth each and a hundredth on average.
/// Of 128 values a root counts as a billionth of the largest at least, and never as 0; a first
/// moment below some millionth of the largest may be 0. So an outlier slows its neighbours down
/// until it has decayed and does not throw them.
///
/// Between steps the optimizer has no moments: unpack() before `optimizer.save()`, pack() after;
/// what was saved without is refused by unpack() once it was loaded. Loading needs neither.
/// amsgrad's maximum stays in float32.
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

  /// Replaces the moments that there are; those that are packed already stay. The optimizer has no
  /// moments for these parameters until they are unpacked: it must not step or be saved. Local.
  void pack();
  /// Makes them float32 again; nothing to do where they are. Moments that the optimizer has got
  /// meanwhile, as by `load()`, are its own, and those that were packed are forgotten. Local.
  /// Errors: c10::ValueError where it has a parameter's state without moments and they are not
  /// here either: it was saved while they were packed.
  void unpack();

  /// What packed moments take.
  int64_t packed_bytes() const;

 private:
  // A tensor's values, flat, and what each 128 of them were multiplied by.
  struct Blocks {
    at::Tensor data, scales;
  };
  struct Packed {
    const torch::optim::OptimizerParamState* state;  // whose moments these are
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
