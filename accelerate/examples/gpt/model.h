/// A decoder-only transformer that predicts the next token: blocks with a norm before the causal
/// attention and before the perceptron, GELU, and learned positions.
#pragma once

#include <vector>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "accelerate/examples/gpt/shape.h"

namespace gpt {

class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const Shape& shape);
  torch::Tensor forward(torch::Tensor x);  ///< [batch, length, width], as the result

 private:
  torch::Tensor attend(const torch::Tensor& x);

  const int64_t heads_;
  torch::nn::LayerNorm norm1_, norm2_;
  torch::nn::Linear qkv_, project_, up_, down_;
};
TORCH_MODULE(Block);

class GptImpl : public torch::nn::Module {
 public:
  /// With `activation_checkpointing` a block's intermediate results are computed again in the
  /// backward pass instead of being kept. Errors: c10::ValueError for a width that the heads cannot
  /// share.
  explicit GptImpl(const Shape& shape, bool activation_checkpointing = false);
  /// Tokens, int64 [batch, length], to logits [batch, length, vocabulary].
  /// Errors: c10::ValueError for a sequence longer than the context.
  torch::Tensor forward(const torch::Tensor& tokens);

 private:
  void initialize();

  const Shape shape_;
  const bool activation_checkpointing_;
  torch::nn::Embedding tokens_;
  torch::Tensor positions_;
  std::vector<Block> blocks_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Gpt);

}  // namespace gpt
