/// Small parts of transformers, for tests and benchmarks: whatever is computed of them, they are
/// the same.
///
/// Threads: as modules.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

namespace accelerate {

/// Causal attention in so many heads; `qkv` is [batch, length, 3 * width].
inline at::Tensor causal_attention(const at::Tensor& qkv, int64_t heads) {
  const int64_t batch = qkv.size(0), length = qkv.size(1), width = qkv.size(2) / 3;
  const auto parts =
      qkv.view({batch, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
  const at::Tensor seen = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0,
                                                           /*is_causal=*/true);
  return seen.transpose(1, 2).reshape({batch, length, width});
}

/// Attention and the layers behind it, each with a norm before: 12 parameters.
struct TransformerBlockImpl : torch::nn::Module {
  TransformerBlockImpl(int64_t width, int64_t heads)
      : heads(heads),
        norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        out(register_module("out", torch::nn::Linear(width, width))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        down(register_module("down", torch::nn::Linear(4 * width, width))) {}

  at::Tensor forward(at::Tensor x) {
    x = x + out(causal_attention(qkv(norm1(x)), heads));
    return x + down(at::gelu(up(norm2(x)), "tanh"));
  }

  const int64_t heads;
  torch::nn::LayerNorm norm1, norm2;
  torch::nn::Linear qkv, out, up, down;
};
TORCH_MODULE(TransformerBlock);

/// Attention of two heads whose results are dropped in part.
struct DroppingAttentionImpl : torch::nn::Module {
  explicit DroppingAttentionImpl(int64_t width)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        out(register_module("out", torch::nn::Linear(width, width))),
        drop(register_module("drop", torch::nn::Dropout(0.2))) {}

  at::Tensor forward(const at::Tensor& x) {
    return x + drop(at::gelu(out(causal_attention(qkv(norm(x)), /*heads=*/2))));
  }

  torch::nn::LayerNorm norm;
  torch::nn::Linear qkv, out;
  torch::nn::Dropout drop;
};
TORCH_MODULE(DroppingAttention);

}  // namespace accelerate
