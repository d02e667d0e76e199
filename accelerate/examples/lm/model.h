/// A decoder-only transformer that predicts the next token. Blocks have a norm before the causal
/// attention and one before the perceptron; Config says which.
///
/// Names of parameters: tokens.weight; positions (GPT); blocks.N.norm1.weight,
/// blocks.N.attention.qkv.weight, blocks.N.attention.project.weight, blocks.N.norm2.weight,
/// blocks.N.mlp.gate.weight (Llama), blocks.N.mlp.up.weight, blocks.N.mlp.down.weight, or those of
/// a MixtureOfExperts behind blocks.N.mlp; norm.weight; head.weight unless it is tied. In GPT a
/// bias stands beside each weight of a norm and a block.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "accelerate/config/model_parts.h"
#include "accelerate/config/model_structure.h"
#include "accelerate/examples/lm/config.h"
#include "accelerate/parallel/experts/mixture.h"
#include "accelerate/parallel/experts/routing.h"

namespace lm {

struct LmOptions {
  /// A block's intermediate results are computed again in the backward pass instead of being kept.
  bool activation_checkpointing = false;
  /// scaled_dot_product_attention gets each head of keys and values once, with enable_gqa, and not
  /// once for each head of queries that shares it: for an operator handler that sends keys and
  /// values to other ranks. Without such a handler the operator may be slower on CPUs.
  bool shares_key_heads = false;
  /// How a router of experts works; how many there are, and how many a token has, is the
  /// configuration's.
  accelerate::RouterOptions router = {};
};

/// By what rotary positions turn the pairs of a head's vector: [length, size of a head / 2], or
/// [batch, 1, length, size of a head / 2] where sequences have positions of their own.
/// Undefined tensors for GPT, whose positions are in the embedding.
struct Rotation {
  torch::Tensor cos;
  torch::Tensor sin;
};

/// The tensors of it, so that who runs a block in its own way sees them.
inline auto tree_members(Rotation& rotation) { return std::tie(rotation.cos, rotation.sin); }

/// The rotation of position p turns pair i of a head of `head_size` elements by the angle
/// p * 10000^(-2 i / head_size). Shapes: [length, head_size / 2], float.
Rotation rotation_of_positions(int64_t length, int64_t head_size, c10::Device device);
/// The same for these positions, integers [length] or [batch, length].
Rotation rotation_of_positions(const torch::Tensor& positions, int64_t head_size);

/// Turns the pairs (x[i], x[i + size / 2]) of each head. Shapes: x [..., length, size of a head].
torch::Tensor rotated(const torch::Tensor& x, const Rotation& rotation);

/// LayerNorm, or RMSNorm without a bias, over the last dim.
class NormImpl : public torch::nn::Module {
 public:
  explicit NormImpl(const Config& config);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  torch::Tensor weight_, bias_;
};
TORCH_MODULE(Norm);

/// Causal attention. The rows of qkv are grouped by the head of keys and values: the queries that
/// share it, then the keys, then the values. A slice of whole groups is thus an attention of its
/// own: with these rows of qkv and the columns of project that belong to their queries, forward
/// computes the slice's part of the result. The parts add up to the whole.
class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const Config& config, const LmOptions& options = {});
  torch::Tensor forward(const torch::Tensor& x, const Rotation& rotation);

 private:
  const int64_t group_, head_size_;  // `group_` heads share one of keys and values
  const bool shares_key_heads_;
  torch::nn::Linear qkv_, project_;
};
TORCH_MODULE(Attention);

class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(const Config& config);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  torch::nn::Linear gate_{nullptr}, up_, down_;
};
TORCH_MODULE(Mlp);

class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const Config& config, const LmOptions& options = {});
  /// [batch, length, hidden], and the result of the same shape, behind which the losses of its
  /// router are, if it has such.
  std::vector<torch::Tensor> forward(torch::Tensor x, const Rotation& rotation);

 private:
  Norm norm1_, norm2_;
  Attention attention_;
  Mlp mlp_{nullptr};
  accelerate::MixtureOfExperts mixture_{nullptr};  // in place of mlp_
};
TORCH_MODULE(Block);

/// Neighbouring pieces of a model: [begin, end). Piece 0 is the embedding of tokens, with GPT's
/// positions; piece i is block i - 1; the last one is the norm behind the blocks and the head.
struct PieceRange {
  int64_t begin = 0;
  int64_t end = 0;
};

/// What all parts of one forward pass are given alike.
struct PartContext {
  /// As LmImpl::forward takes them.
  torch::Tensor positions = {};
};

class LmImpl : public torch::nn::Module,
               public accelerate::ModelStructure,
               public accelerate::ModelParts {
 public:
  /// A configuration of model_config().
  LmImpl(const Config& config, const LmOptions& options);
  explicit LmImpl(const Config& config, bool activation_checkpointing = false)
      : LmImpl(config, LmOptions{.activation_checkpointing = activation_checkpointing}) {}

  /// Tokens, int64 [batch, length], to logits [batch, length, vocabulary]. `positions` are the
  /// tokens' numbers in their sequences, integers [length], or [batch, length] where sequences
  /// differ, on the tokens' device; undefined: 0, 1, 2, .... A rank that has some tokens of each
  /// sequence gives their numbers.
  /// Errors: c10::ValueError for a sequence longer than config.sequence_length, and for positions
  ///         that are not as many as the tokens.
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& positions = {});

  /// The forward pass by parts: the result of one part is `x` of the next one, and all parts
  /// together give what forward gives, bit by bit. No other value goes from part to part: each
  /// computes its rotation from the context. `x` is tokens, as for forward, if piece 0 is among the
  /// pieces, else [batch, length, hidden]; so is the result without the last piece, else logits.
  /// Errors: those of forward; c10::ValueError for pieces that the model does not have.
  torch::Tensor forward_part(const PieceRange& pieces, torch::Tensor x,
                             const PartContext& context = {});
  int64_t num_pieces() const { return config_.layers + 2; }

  /// The pieces, as "tokens", "blocks.0" and "head".
  std::vector<accelerate::ModelPart> parts() const override;
  torch::Tensor forward_parts(size_t begin, size_t end, torch::Tensor x) override {
    return forward_parts_at(begin, end, std::move(x), {});
  }
  torch::Tensor forward_parts_at(size_t begin, size_t end, torch::Tensor x,
                                 const torch::Tensor& positions) override {
    return forward_part({.begin = static_cast<int64_t>(begin), .end = static_cast<int64_t>(end)},
                        std::move(x), {.positions = positions});
  }
  /// The sum over the blocks of the last forward pass.
  torch::Tensor take_router_loss() override;

  std::vector<std::string> no_split_modules() const override { return {"Block"}; }
  std::optional<std::string> input_embeddings() const override { return "tokens"; }
  std::optional<std::string> output_embeddings() const override {
    return head_ ? "head" : "tokens";
  }
  std::vector<int64_t> hidden_sizes() const override { return {config_.hidden}; }
  std::optional<accelerate::TensorParallelPlan> tensor_parallel_plan() const override;

 protected:
  const Config& config() const { return config_; }
  /// What the block with this number gives to the next one: its result, to which a subclass may add
  /// an adapter. Shapes: [batch, length, hidden], as the result.
  virtual torch::Tensor after_block(int64_t /*block*/, torch::Tensor x) { return x; }

 private:
  void initialize();
  torch::Tensor embedded(const torch::Tensor& tokens, const torch::Tensor& positions);
  // Undefined for GPT. `device` is the tokens'.
  Rotation rotation_for(int64_t length, c10::Device device, const torch::Tensor& positions) const;

  const Config config_;
  const bool activation_checkpointing_;
  torch::nn::Embedding tokens_;
  torch::Tensor positions_;
  torch::nn::ModuleList blocks_;
  Norm norm_;
  torch::nn::Linear head_{nullptr};
  std::vector<torch::Tensor> router_losses_;  // by block
};
TORCH_MODULE(Lm);

/// Sequences that count up from random tokens, modulo the vocabulary, with the token after each:
/// int64 [count, sequence_length + 1].
torch::Tensor counting_sequences(const Config& config, int64_t count);

}  // namespace lm
