/// Stochastic gradient descent, all parameters in one call of LibTorch's fused kernel.
///
/// Does what torch::optim::SGD does, and is one: options, state and archives are the same, so a
/// checkpoint of either continues with the other. Parameters for which the device has no fused
/// kernel (or one that errs: half precision on a CPU), and those whose gradient is sparse or lies
/// otherwise in memory, are updated one by one.
/// Threads: one at a time.
/// Mirrors: torch.optim.SGD(fused=True).
#pragma once

#include <torch/optim/sgd.h>

#include "accelerate/optim/fused_batches.h"

namespace accelerate::optim {

class SGD : public torch::optim::SGD {
 public:
  explicit SGD(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
               torch::optim::SGDOptions defaults);
  explicit SGD(std::vector<at::Tensor> parameters, torch::optim::SGDOptions defaults);

  at::Tensor step(LossClosure closure = nullptr) override;

 private:
  internal::FusedBatches batches_;
};

}  // namespace accelerate::optim
