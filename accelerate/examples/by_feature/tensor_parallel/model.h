/// A small language model in plain LibTorch, and the plan by which ranks divide it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include "accelerate/config/tensor_parallel_plan.h"

namespace tensor_parallel {

inline constexpr int64_t kVocabulary = 64;
inline constexpr int64_t kLength = 32;  ///< the most tokens of a sequence
inline constexpr int64_t kHidden = 64;
inline constexpr int64_t kHeads = 4;
inline constexpr int64_t kLayers = 2;

/// Causal attention and a perceptron, each behind a norm and added to its input.
class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(double dropout);
  /// [batch, length, hidden], as the result.
  at::Tensor forward(at::Tensor x);

 private:
  torch::nn::LayerNorm norm1_, norm2_;
  torch::nn::Linear qkv_, project_, up_, down_;
  torch::nn::Dropout dropout_;
};
TORCH_MODULE(Block);

class SmallLmImpl : public torch::nn::Module {
 public:
  explicit SmallLmImpl(double dropout);
  /// Tokens, int64 [batch, length], to logits [batch, length, vocabulary].
  at::Tensor forward(const at::Tensor& tokens);

 private:
  torch::nn::Embedding tokens_;
  at::Tensor positions_;
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_;
};
TORCH_MODULE(SmallLm);

/// Which of its layers ranks divide, and how. A model of one's own can bring its plan by itself
/// (ModelStructure).
accelerate::TensorParallelPlan plan_of_small_lm();

}  // namespace tensor_parallel
