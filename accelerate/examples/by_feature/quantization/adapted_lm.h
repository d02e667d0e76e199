/// The language model of examples/lm with an adapter of low rank behind each block: what is trained
/// beside quantised weights, which are not.
///
///   AdaptedLm net = ...;  // empty
///   auto model = load_and_quantize_model(net, config, {.weights_location = "checkpoint"});
///   const std::vector<torch::Tensor> trained = net->add_adapters(/*rank=*/8, device);
#pragma once

#include <cstdint>
#include <vector>

#include <c10/core/Device.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "accelerate/examples/lm/model.h"

namespace quantization {

class AdaptedLmImpl : public lm::LmImpl {
 public:
  explicit AdaptedLmImpl(const lm::Config& config) : LmImpl(config) {}

  /// Freezes all other parameters, and returns the adapters' float32 ones. Untrained
  /// adapters do not change the model's outputs.
  std::vector<torch::Tensor> add_adapters(int64_t rank, c10::Device device);

 protected:
  /// x + up down x
  torch::Tensor after_block(int64_t block, torch::Tensor x) override;

 private:
  struct Adapter {
    torch::Tensor down;  // [rank, hidden]
    torch::Tensor up;    // [hidden, rank]
  };
  std::vector<Adapter> adapters_;
};
TORCH_MODULE(AdaptedLm);

}  // namespace quantization
