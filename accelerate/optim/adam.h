/// Adam and AdamW, all parameters in one call of LibTorch's fused kernel.
///
/// They do what torch::optim::Adam and AdamW do, and are such: options, state and archives are the
/// same, so a checkpoint of either continues with the other. Parameters for which the device has no
/// fused kernel, and gradients that lie otherwise in memory than their parameter, are updated one
/// by one. In half precision the kernels round once per step and LibTorch's after each operation.
/// Errors: c10::Error in step() naming the parameter whose gradient is sparse; nothing has changed.
/// Threads: one at a time.
/// Mirrors: torch.optim.Adam(fused=True), torch.optim.AdamW(fused=True).
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include "accelerate/optim/fused_batches.h"

namespace accelerate::optim {

class Adam : public torch::optim::Adam {
 public:
  explicit Adam(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                torch::optim::AdamOptions defaults = {});
  explicit Adam(std::vector<at::Tensor> parameters, torch::optim::AdamOptions defaults = {});

  at::Tensor step(LossClosure closure = nullptr) override;

 private:
  internal::FusedBatches batches_;
};

class AdamW : public torch::optim::AdamW {
 public:
  explicit AdamW(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                 torch::optim::AdamWOptions defaults = {});
  explicit AdamW(std::vector<at::Tensor> parameters, torch::optim::AdamWOptions defaults = {});

  at::Tensor step(LossClosure closure = nullptr) override;

 private:
  internal::FusedBatches batches_;
};

}  // namespace accelerate::optim
