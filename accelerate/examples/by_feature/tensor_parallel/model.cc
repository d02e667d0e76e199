#include "accelerate/examples/by_feature/tensor_parallel/model.h"

#include <vector>

#include <ATen/ops/gelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/types.h>

#include "accelerate/operators/block.h"
#include "accelerate/parallel/tensor/sequence_shards.h"

namespace tensor_parallel {
namespace {

torch::nn::LayerNorm norm() { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kHidden})); }

}  // namespace

BlockImpl::BlockImpl(double dropout)
    : norm1_(register_module("norm1", norm())),
      norm2_(register_module("norm2", norm())),
      qkv_(register_module("qkv", torch::nn::Linear(kHidden, 3 * kHidden))),
      project_(register_module("project", torch::nn::Linear(kHidden, kHidden))),
      up_(register_module("up", torch::nn::Linear(kHidden, 4 * kHidden))),
      down_(register_module("down", torch::nn::Linear(4 * kHidden, kHidden))),
      dropout_(register_module("dropout", torch::nn::Dropout(dropout))) {}

at::Tensor BlockImpl::forward(at::Tensor x) {
  std::vector<at::Tensor> parts = qkv_(norm1_(x)).chunk(3, /*dim=*/-1);
  // -1 stands for as many heads as there are: a rank may have some of them.
  for (at::Tensor& part : parts) {
    part = part.unflatten(-1, {-1, kHidden / kHeads}).transpose(1, 2);
  }
  const at::Tensor attended = at::scaled_dot_product_attention(
      parts[0], parts[1], parts[2], /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
  x = x + dropout_(project_(attended.transpose(1, 2).flatten(2)));
  return x + dropout_(down_(at::gelu(up_(norm2_(x)))));
}

SmallLmImpl::SmallLmImpl(double dropout)
    : tokens_(register_module("tokens", torch::nn::Embedding(kVocabulary, kHidden))),
      positions_(register_parameter("positions", torch::zeros({kLength, kHidden}))),
      blocks_(register_module("blocks", torch::nn::ModuleList())),
      norm_(register_module("norm", norm())),
      head_(register_module(
          "head", torch::nn::Linear(torch::nn::LinearOptions(kHidden, kVocabulary).bias(false)))) {
  for (int64_t i = 0; i < kLayers; ++i) blocks_->push_back(Block(dropout));
}

at::Tensor SmallLmImpl::forward(const at::Tensor& tokens) {
  at::Tensor x = tokens_(tokens) + positions_.narrow(0, 0, tokens.size(1));
  // From here on each rank has a part of every sequence, if the plan says so.
  x = accelerate::shard_sequence(x);
  for (size_t i = 0; i < blocks_->size(); ++i) x = accelerate::block(blocks_->ptr<BlockImpl>(i), x);
  return head_(norm_(x));
}

accelerate::TensorParallelPlan plan_of_small_lm() {
  using enum accelerate::TensorStyle;
  return {{.pattern = "tokens", .style = kEmbedding},
          // Queries, keys and values are three weights in one, of whole heads each.
          {.pattern = "blocks.*.qkv", .style = kColumn, .blocks = {1, 1, 1}, .groups = kHeads},
          {.pattern = "blocks.*.project", .style = kRow},
          {.pattern = "blocks.*.up", .style = kColumn},
          {.pattern = "blocks.*.down", .style = kRow},
          {.pattern = "head", .style = kColumn, .gather_output = true},
          // Whole on all ranks, and used with parts of sequences.
          {.pattern = "blocks.*.norm*", .sequence = true},
          {.pattern = "norm", .sequence = true}};
}

}  // namespace tensor_parallel
