/// The guards of a region: what must be as it was for a recorded region to run in the place of a
/// call.
///
/// Guarded are, of each parameter, buffer and input: its dtype, device, sizes, strides, whether it
/// requires a gradient, and with which of the others it shares memory; how many there are; the
/// class of each submodule, and whether it trains or evaluates; whether gradients are recorded;
/// what automatic mixed precision casts to; the default dtype; and inputs that are not tensors.
/// Members of the module that are not tensors are not seen: they are as they were when the region
/// was recorded.
///
/// Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/base/libtorch_fwd.h"
#include "accelerate/forward/forward_call.h"

namespace accelerate {

struct RegionKey {
  std::vector<int64_t> words;
  /// The values of inputs that are not tensors.
  std::string others;

  bool operator==(const RegionKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H hash, const RegionKey& key) {
    return H::combine(std::move(hash), key.words, key.others);
  }
};

/// The tensors that a region reads, and its guards.
struct RegionCall {
  /// Parameters, then buffers, then inputs.
  std::vector<at::Tensor> tensors;
  size_t first_buffer = 0;
  size_t first_input = 0;
  RegionKey key;
  /// False where the guards cannot tell this call from others: an input is neither a tensor, nor a
  /// number, nor a text.
  bool is_known = true;
  /// Whether the module, or one below it, runs a hook around its forward pass.
  bool has_hooks = false;
};

RegionCall region_call(const torch::nn::Module& module, ForwardCall& call);

}  // namespace accelerate
