/// The models that tests of divided training train, with data that depends on the step and the
/// rank alone.
///
/// Threads: the rank's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/sin.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "accelerate/examples/lm/model.h"

namespace accelerate {

struct ConvnetImpl : torch::nn::Module {
  ConvnetImpl() {
    conv =
        register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 7, 3).bias(false)));
    norm = register_module("norm", torch::nn::BatchNorm2d(7));
    head = register_module("head", torch::nn::Linear(7 * 14 * 14, 5));
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(norm(conv(x)).relu_().flatten(1)); }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Convnet);

inline lm::Config tiny() {
  return lm::model_config("tiny", {.blocks = lm::Blocks::kLlama,
                                   .layers = 3,
                                   .hidden = 48,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .sequence_length = 12,
                                   .vocabulary = 37,
                                   .tied_head = 0});
}

// The loss of a rank's part of a step.
inline torch::Tensor loss_of(const std::function<torch::Tensor(const torch::Tensor&)>& model,
                             const lm::LmImpl&, int step, int rank, c10::Device device) {
  const torch::Tensor tokens = ((at::arange(26) * (3 + step) + 5 * rank) % 37).view({2, 13});
  const torch::Tensor logits = model(tokens.narrow(1, 0, 12).to(device));
  return at::cross_entropy_loss(logits.to(torch::kFloat).flatten(0, 1),
                                tokens.narrow(1, 1, 12).flatten().to(device));
}
inline torch::Tensor loss_of(const std::function<torch::Tensor(const torch::Tensor&)>& model,
                             const ConvnetImpl& net, int step, int rank, c10::Device device) {
  const torch::Tensor x = at::sin(at::arange(3. * 512) * (0.1 * (1 + step)) + rank);
  const torch::Tensor labels = (at::arange(3) + step + rank) % 5;
  const torch::Tensor images = x.view({3, 2, 16, 16}).to(torch::kFloat).to(device);
  return at::cross_entropy_loss(model(images).to(torch::kFloat), labels.to(device));
}

inline std::shared_ptr<lm::LmImpl> make(const lm::LmImpl*) {
  return std::make_shared<lm::LmImpl>(tiny());
}
inline std::shared_ptr<ConvnetImpl> make(const ConvnetImpl*) {
  return std::make_shared<ConvnetImpl>();
}

// The device's allocator gives memory in blocks of 512 bytes.
inline int64_t blocks(int64_t bytes) { return (bytes + 511) / 512 * 512; }

}  // namespace accelerate
