/// Models of the tests of hooks: the same class with parts that run hooks and with plain ones.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/softmax.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/utils.h>

#include "accelerate/hooks/hooked.h"

namespace accelerate {

inline constexpr int64_t kWidth = 64, kVocabulary = 64, kLength = 16;
inline constexpr int kBlocks = 3;

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        qkv(register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth))),
        out(register_module("out", torch::nn::Linear(kWidth, kWidth))),
        up(register_module("up", torch::nn::Linear(kWidth, 4 * kWidth))),
        down(register_module("down", torch::nn::Linear(4 * kWidth, kWidth))) {}

  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    const auto parts = qkv(norm(x)).chunk(3, -1);
    const at::Tensor scores = at::matmul(parts[0], parts[1].transpose(1, 2)) + mask;
    const at::Tensor y = x + out(at::matmul(at::softmax(scores, -1), parts[2]));
    return y + down(at::gelu(up(y)));
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear qkv, out, up, down;
};

template <template <typename> class Part>
struct GptImpl : torch::nn::Module {
  explicit GptImpl(bool tied = true)
      : tokens(register_module("tokens", Held<torch::nn::EmbeddingImpl>(kVocabulary, kWidth))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        head(register_module("head", Held<torch::nn::LinearImpl>(kWidth, kVocabulary))) {
    for (int i = 0; i < kBlocks; ++i) blocks->push_back(Held<BlockImpl>());
    // One tensor under two names, by the same members.
    if (tied) tie(*head, tokens->weight);
    scale = register_buffer("scale", at::full({1}, 1.5));
  }
  static void tie(torch::nn::LinearImpl& layer, const at::Tensor& weight) {
    struct Access : torch::nn::LinearImpl {
      static void set(torch::nn::LinearImpl& layer, const at::Tensor& weight) {
        (layer.*&Access::parameters_)["weight"] = weight;
      }
    };
    layer.weight = weight;
    Access::set(layer, weight);
  }

  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = tokens(ids);
    const int64_t length = ids.size(1);
    const at::Tensor mask =
        at::full({length, length}, -INFINITY, x.options().requires_grad(false)).triu(1);
    for (int i = 0; i < kBlocks; ++i) x = block(i).forward(x, mask);
    // Where the blocks left it.
    return head(x * scale.to(x.device()));
  }

  template <typename Impl>
  using Held = torch::nn::ModuleHolder<Part<Impl>>;
  Part<BlockImpl>& block(int i) { return *blocks->ptr<Part<BlockImpl>>(i); }

  Held<torch::nn::EmbeddingImpl> tokens;
  torch::nn::ModuleList blocks;
  Held<torch::nn::LinearImpl> head;
  at::Tensor scale;
};

template <typename Impl>
using Plain = Impl;
using PlainGpt = GptImpl<Plain>;
using HookedGpt = Hooked<GptImpl<Hooked>>;

struct ConvImpl : torch::nn::Module {
  ConvImpl()
      : conv1(register_module("conv1",
                              torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(8))),
        conv2(register_module("conv2", torch::nn::Conv2d(8, 8, 3))),
        head(register_module("head", torch::nn::Linear(8, 4))) {}
  at::Tensor forward(at::Tensor x) {
    x = conv2(at::relu(norm(conv1(x))));
    return head(x.mean({2, 3}));
  }
  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d norm;
  torch::nn::Conv2d conv2;
  torch::nn::Linear head;
};
// Its parts are plain.
TORCH_MODULE_IMPL(Conv, Hooked<ConvImpl>);

template <typename Module, typename... Args>
std::shared_ptr<Module> seeded(Args&&... args) {
  torch::manual_seed(11);
  return std::make_shared<Module>(std::forward<Args>(args)...);
}

inline at::Tensor some_ids() {
  return at::arange(2 * kLength).view({2, kLength}).remainder(kVocabulary);
}

// The next token, 20 times.
template <typename Model>
at::Tensor generate(Model& model, at::Tensor ids) {
  const at::NoGradGuard no_grad;
  for (int i = 0; i < 20; ++i) {
    const at::Tensor next = model.forward(ids).select(1, -1).argmax(-1, /*keepdim=*/true).cpu();
    ids = at::cat({ids, next}, 1);
  }
  return ids;
}

}  // namespace accelerate
