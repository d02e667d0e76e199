#include "accelerate/examples/gpt/model.h"

#include <cmath>
#include <string>
#include <utility>

#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include "accelerate/operators/checkpoint.h"

namespace gpt {
namespace {

torch::nn::LayerNorm norm_of(const Shape& shape) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width}));
}

}  // namespace

BlockImpl::BlockImpl(const Shape& shape)
    : heads_(shape.heads),
      norm1_(register_module("norm1", norm_of(shape))),
      norm2_(register_module("norm2", norm_of(shape))),
      qkv_(register_module("qkv", torch::nn::Linear(shape.width, 3 * shape.width))),
      project_(register_module("project", torch::nn::Linear(shape.width, shape.width))),
      up_(register_module("up", torch::nn::Linear(shape.width, 4 * shape.width))),
      down_(register_module("down", torch::nn::Linear(4 * shape.width, shape.width))) {}

torch::Tensor BlockImpl::attend(const torch::Tensor& x) {
  const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
  std::vector<torch::Tensor> parts;  // [batch, heads, length, width of a head]
  for (const torch::Tensor& part : qkv_(x).chunk(3, /*dim=*/-1)) {
    parts.push_back(part.view({batch, length, heads_, width / heads_}).transpose(1, 2));
  }
  const torch::Tensor attended =
      at::scaled_dot_product_attention(parts[0], parts[1], parts[2], /*attn_mask=*/{},
                                       /*dropout_p=*/0.0, /*is_causal=*/true);
  return project_(attended.transpose(1, 2).reshape({batch, length, width}));
}

torch::Tensor BlockImpl::forward(torch::Tensor x) {
  x = x + attend(norm1_(x));
  return x + down_(at::gelu(up_(norm2_(x))));
}

GptImpl::GptImpl(const Shape& shape, bool activation_checkpointing)
    : shape_(shape),
      activation_checkpointing_(activation_checkpointing),
      tokens_(register_module("tokens", torch::nn::Embedding(shape.vocabulary, shape.width))),
      positions_(register_parameter("positions", torch::empty({shape.context, shape.width}))),
      norm_(register_module("norm", norm_of(shape))) {
  TORCH_CHECK_VALUE(shape.width % shape.heads == 0, shape.heads, " heads cannot share a width of ",
                    shape.width, ": take a multiple of the number of heads");
  for (int64_t i = 0; i < shape.layers; ++i) {
    blocks_.push_back(register_module("block" + std::to_string(i), Block(shape)));
  }
  if (!shape.tied_head) {
    head_ = register_module(
        "head",
        torch::nn::Linear(torch::nn::LinearOptions(shape.width, shape.vocabulary).bias(false)));
  }
  initialize();
}

// As GPT-2: normal weights, smaller where each block adds to the residual stream.
void GptImpl::initialize() {
  const torch::NoGradGuard no_grad;
  constexpr double kDeviation = 0.02;
  const double of_residuals = kDeviation / std::sqrt(2.0 * static_cast<double>(shape_.layers));
  for (const auto& item : named_parameters()) {
    const std::string& name = item.key();
    if (name.find("norm") != std::string::npos) continue;  // ones and zeros already
    if (name.ends_with("bias")) {
      item.value().zero_();
    } else {
      const bool adds = name.ends_with("project.weight") || name.ends_with("down.weight");
      item.value().normal_(0, adds ? of_residuals : kDeviation);
    }
  }
}

torch::Tensor GptImpl::forward(const torch::Tensor& tokens) {
  const int64_t length = tokens.size(1);
  TORCH_CHECK_VALUE(length <= shape_.context, "a sequence of ", length,
                    " tokens is longer than the model's context of ", shape_.context);
  torch::Tensor x = tokens_(tokens) + positions_.narrow(0, 0, length);
  for (Block& block : blocks_) {
    // Blocks draw no random numbers.
    x = activation_checkpointing_
            ? accelerate::checkpoint(
                  accelerate::CheckpointOptions{.preserve_rng_state = false},
                  [block](torch::Tensor x) mutable { return block->forward(std::move(x)); }, x)
            : block->forward(x);
  }
  return at::linear(norm_(x), shape_.tied_head ? tokens_->weight : head_->weight);
}

}  // namespace gpt
