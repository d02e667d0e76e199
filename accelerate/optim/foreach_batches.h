/// Parameters with a gradient, as lists for LibTorch's foreach operators: one device, dtype and
/// step number each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accelerate::internal {

template <size_t kStates>
struct ForeachBatch {
  int64_t step;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> grads;
  std::array<std::vector<at::Tensor>, kStates> states;
};

template <size_t kStates>
class ForeachBatches {
 public:
  void add(int64_t step, const at::Tensor& parameter,
           const std::array<at::Tensor, kStates>& states) {
    ForeachBatch<kStates>& batch = find(step, parameter);
    batch.parameters.push_back(parameter);
    batch.grads.push_back(parameter.grad());
    for (size_t i = 0; i < kStates; ++i) batch.states[i].push_back(states[i]);
  }
  std::vector<ForeachBatch<kStates>>& batches() { return batches_; }

 private:
  ForeachBatch<kStates>& find(int64_t step, const at::Tensor& parameter) {
    for (ForeachBatch<kStates>& batch : batches_) {
      const at::Tensor& first = batch.parameters.front();
      if (batch.step == step && first.device() == parameter.device() &&
          first.scalar_type() == parameter.scalar_type()) {
        return batch;
      }
    }
    return batches_.emplace_back(ForeachBatch<kStates>{.step = step});
  }

  std::vector<ForeachBatch<kStates>> batches_;
};

}  // namespace accelerate::internal
