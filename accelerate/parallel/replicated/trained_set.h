/// Which parameters of a module are trained, and whether some were frozen or unfrozen since.
///
/// Local.
/// Threads: the rank's thread.
#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "accelerate/base/libtorch_fwd.h"

namespace accelerate::internal {

class TrainedSet {
 public:
  struct Parameters {
    std::vector<at::Tensor> tensors;
    std::vector<bool> sparse;  // whether the gradient is sparse
    std::unordered_map<size_t, std::string> names;
  };

  /// The trainable parameters, each once, in the module's order.
  static Parameters parameters(const torch::nn::Module& module);

  /// Notes which parameters are trained now.
  void set(const torch::nn::Module& module);
  /// Whether others are trained by now, or some are frozen for whose gradients a reduction would
  /// wait; with `finds_unused` it does not.
  bool has_changed(bool finds_unused) const;

 private:
  std::vector<std::pair<at::Tensor, bool>> parameters_;  // all; whether they were trained
};

}  // namespace accelerate::internal
