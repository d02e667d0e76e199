#include "accelerate/examples/lm/model.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include "accelerate/operators/block.h"
#include "accelerate/operators/checkpoint.h"
#include "accelerate/operators/rms_norm.h"
#include "accelerate/parallel/tensor/sequence_shards.h"

namespace lm {
namespace {

constexpr double kNormEpsilon = 1e-5;
constexpr double kLongestWave = 10'000;  // in positions, divided by 2 pi

bool is_gpt(const Config& config) { return config.blocks == Blocks::kGpt; }

torch::nn::Linear matrix(const Config& config, int64_t in, int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(is_gpt(config)));
}

// Each head of x [batch, heads, length, size of a head] `times` times.
torch::Tensor repeated(const torch::Tensor& x, int64_t times) {
  return x.unsqueeze(2).expand({x.size(0), x.size(1), times, x.size(2), x.size(3)}).flatten(1, 2);
}

torch::TensorOptions floats_on(c10::Device device) {
  return torch::TensorOptions(device).dtype(torch::kFloat);
}

// The angles by which a step of one position turns the pairs of a head.
torch::Tensor angles_of_a_step(int64_t head_size, c10::Device device) {
  const double slope = -std::log(kLongestWave) / static_cast<double>(head_size);
  return (at::arange(0, head_size, 2, floats_on(device)) * slope).exp();
}

void check_positions(const torch::Tensor& positions, const torch::Tensor& x) {
  if (!positions.defined()) return;
  const bool fits = positions.dim() == 1 ? positions.size(0) == x.size(1)
                                         : positions.sizes() == x.sizes().slice(0, 2);
  TORCH_CHECK_VALUE(fits && at::isIntegralType(positions.scalar_type(), /*includeBool=*/false),
                    "positions ", positions.sizes(), " of ", positions.scalar_type(), " for ",
                    x.size(0), " sequences of ", x.size(1),
                    " tokens: they must be integers, one for each token of one or all sequences");
}

}  // namespace

Rotation rotation_of_positions(int64_t length, int64_t head_size, c10::Device device) {
  const torch::Tensor step = angles_of_a_step(head_size, device);
  const torch::Tensor angles = at::arange(length, floats_on(device)).unsqueeze(1) * step;
  return {.cos = angles.cos(), .sin = angles.sin()};
}

Rotation rotation_of_positions(const torch::Tensor& positions, int64_t head_size) {
  const torch::Tensor step = angles_of_a_step(head_size, positions.device());
  torch::Tensor angles = positions.to(torch::kFloat).unsqueeze(-1) * step;
  if (positions.dim() == 2) angles = angles.unsqueeze(1);  // the same for all heads
  return {.cos = angles.cos(), .sin = angles.sin()};
}

torch::Tensor rotated(const torch::Tensor& x, const Rotation& rotation) {
  const torch::Tensor cos = rotation.cos.to(x.scalar_type());
  const torch::Tensor sin = rotation.sin.to(x.scalar_type());
  const std::vector<torch::Tensor> halves = x.chunk(2, /*dim=*/-1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin},
                 /*dim=*/-1);
}

NormImpl::NormImpl(const Config& config)
    : weight_(register_parameter("weight", torch::ones({config.hidden}))) {
  if (is_gpt(config)) bias_ = register_parameter("bias", torch::zeros({config.hidden}));
}

torch::Tensor NormImpl::forward(const torch::Tensor& x) {
  return bias_.defined() ? at::layer_norm(x, weight_.sizes(), weight_, bias_, kNormEpsilon)
                         : accelerate::rms_norm(x, weight_.sizes(), weight_, kNormEpsilon);
}

AttentionImpl::AttentionImpl(const Config& config, const LmOptions& options)
    : group_(config.heads / config.kv_heads),
      head_size_(config.hidden / config.heads),
      shares_key_heads_(options.shares_key_heads),
      qkv_(register_module(
          "qkv", matrix(config, config.hidden, config.kv_heads * (group_ + 2) * head_size_))),
      project_(register_module("project", matrix(config, config.hidden, config.hidden))) {}

torch::Tensor AttentionImpl::forward(const torch::Tensor& x, const Rotation& rotation) {
  const torch::Tensor product = qkv_(x);
  // The heads are counted, because a rank may have the weights of some of them. A size of -1 would
  // count them as well, but not in an empty batch.
  const int64_t kv_heads = product.size(2) / ((group_ + 2) * head_size_);
  const std::vector<torch::Tensor> parts =
      product.view({product.size(0), product.size(1), kv_heads, group_ + 2, head_size_})
          .split_with_sizes({group_, 1, 1}, /*dim=*/3);
  // [batch, heads, length, size of a head]
  torch::Tensor queries = parts[0].flatten(2, 3).transpose(1, 2);
  torch::Tensor keys = parts[1].flatten(2, 3).transpose(1, 2);
  torch::Tensor values = parts[2].flatten(2, 3).transpose(1, 2);
  if (rotation.cos.defined()) {
    queries = rotated(queries, rotation);
    keys = rotated(keys, rotation);
    // As a view they would keep the whole product for the backward pass, also its other parts.
    values = values.contiguous();
  }
  const bool shares = group_ > 1 && shares_key_heads_;
  if (group_ > 1 && !shares) {
    keys = repeated(keys, group_);
    values = repeated(values, group_);
  }
  const torch::Tensor attended =
      at::scaled_dot_product_attention(queries, keys, values, /*attn_mask=*/{}, /*dropout_p=*/0.0,
                                       /*is_causal=*/true, /*scale=*/std::nullopt,
                                       /*enable_gqa=*/shares);
  return project_(attended.transpose(1, 2).flatten(2, 3));
}

MlpImpl::MlpImpl(const Config& config)
    : up_(register_module("up", matrix(config, config.hidden, config.intermediate))),
      down_(register_module("down", matrix(config, config.intermediate, config.hidden))) {
  if (is_gpt(config)) return;
  gate_ = register_module("gate", matrix(config, config.hidden, config.intermediate));
}

torch::Tensor MlpImpl::forward(const torch::Tensor& x) {
  return down_(gate_ ? at::silu(gate_(x)) * up_(x) : at::gelu(up_(x)));
}

BlockImpl::BlockImpl(const Config& config, const LmOptions& options)
    : norm1_(register_module("norm1", Norm(config))),
      norm2_(register_module("norm2", Norm(config))),
      attention_(register_module("attention", Attention(config, options))) {
  if (config.experts == 0) {
    mlp_ = register_module("mlp", Mlp(config));
    return;
  }
  accelerate::RouterOptions router = options.router;
  router.experts = config.experts;
  router.top_k = config.experts_per_token;
  mixture_ = register_module("mlp", accelerate::MixtureOfExperts(accelerate::MixtureOptions{
                                        .hidden = config.hidden,
                                        .intermediate = config.expert_intermediate,
                                        .router = router,
                                        .shared_intermediate = config.shared_intermediate}));
}

std::vector<torch::Tensor> BlockImpl::forward(torch::Tensor x, const Rotation& rotation) {
  x = x + attention_(norm1_(x), rotation);
  if (mlp_) return {x + mlp_(norm2_(x))};
  std::vector<torch::Tensor> results{x + mixture_(norm2_(x))};
  torch::Tensor loss = mixture_->take_router_loss();
  if (loss.defined()) results.push_back(std::move(loss));
  return results;
}

LmImpl::LmImpl(const Config& config, const LmOptions& options)
    : config_(config),
      activation_checkpointing_(options.activation_checkpointing),
      tokens_(register_module("tokens", torch::nn::Embedding(config.vocabulary, config.hidden))),
      blocks_(register_module("blocks", torch::nn::ModuleList())),
      norm_(register_module("norm", Norm(config))) {
  if (is_gpt(config)) {
    positions_ =
        register_parameter("positions", torch::empty({config.sequence_length, config.hidden}));
  }
  for (int64_t i = 0; i < config.layers; ++i) blocks_->push_back(Block(config, options));
  router_losses_.resize(static_cast<size_t>(config.layers));
  if (config.tied_head == 0) {
    head_ = register_module(
        "head",
        torch::nn::Linear(torch::nn::LinearOptions(config.hidden, config.vocabulary).bias(false)));
  }
  initialize();
}

// As GPT-2: normal weights, smaller where each block adds to the residual stream.
void LmImpl::initialize() {
  const torch::NoGradGuard no_grad;
  constexpr double kDeviation = 0.02;
  const double of_residuals = kDeviation / std::sqrt(2.0 * static_cast<double>(config_.layers));
  for (const auto& item : named_parameters()) {
    const std::string& name = item.key();
    if (name.find("norm") != std::string::npos) continue;  // ones and zeros already
    if (name.ends_with("bias")) {
      item.value().zero_();
    } else {
      const bool adds = name.ends_with("project.weight") || name.ends_with("down.weight") ||
                        name.ends_with("experts.down");
      item.value().normal_(0, adds ? of_residuals : kDeviation);
    }
  }
}

torch::Tensor LmImpl::embedded(const torch::Tensor& tokens, const torch::Tensor& positions) {
  torch::Tensor x = tokens_(tokens);
  if (!is_gpt(config_)) return x;
  return x + (positions.defined() ? at::embedding(positions_, positions)
                                  : positions_.narrow(0, 0, tokens.size(1)));
}

Rotation LmImpl::rotation_for(int64_t length, c10::Device device,
                              const torch::Tensor& positions) const {
  if (is_gpt(config_)) return {};
  const int64_t head_size = config_.hidden / config_.heads;
  return positions.defined() ? rotation_of_positions(positions, head_size)
                             : rotation_of_positions(length, head_size, device);
}

torch::Tensor LmImpl::forward(const torch::Tensor& tokens, const torch::Tensor& positions) {
  return forward_part({.begin = 0, .end = num_pieces()}, tokens, {.positions = positions});
}

torch::Tensor LmImpl::forward_part(const PieceRange& pieces, torch::Tensor x,
                                   const PartContext& context) {
  const auto& [begin, end] = pieces;
  TORCH_CHECK_VALUE(0 <= begin && begin < end && end <= num_pieces(), "pieces ", begin, " to ", end,
                    " of a model with ", num_pieces());
  const int64_t length = x.size(1);
  TORCH_CHECK_VALUE(length <= config_.sequence_length, "a sequence of ", length,
                    " tokens is longer than the model's ", config_.sequence_length);
  check_positions(context.positions, x);
  const c10::Device device = x.device();
  if (begin == 0) x = embedded(x, context.positions);
  // Stages of a pipeline hand each other whole sequences.
  x = accelerate::shard_sequence(x);
  const int64_t first = std::max<int64_t>(begin - 1, 0);
  const int64_t last = std::min(end - 1, config_.layers);
  Rotation rotation;
  if (first < last) rotation = rotation_for(length, device, context.positions);
  for (int64_t number = first; number < last; ++number) {
    const auto block = blocks_->ptr<BlockImpl>(static_cast<size_t>(number));
    // Blocks draw no random numbers.
    std::vector<torch::Tensor> results =
        activation_checkpointing_ ? accelerate::checkpoint(
                                        accelerate::CheckpointOptions{.preserve_rng_state = false},
                                        [block, rotation](torch::Tensor x) {
                                          return block->forward(std::move(x), rotation);
                                        },
                                        x)
                                  : accelerate::block(block, x, rotation);
    router_losses_[static_cast<size_t>(number)] = results.size() > 1 ? results[1] : torch::Tensor();
    x = after_block(number, std::move(results[0]));
  }
  if (end < num_pieces()) return x;
  return at::linear(norm_(x), head_ ? head_->weight : tokens_->weight);
}

torch::Tensor LmImpl::take_router_loss() {
  torch::Tensor sum;
  for (torch::Tensor& each : router_losses_) {
    const torch::Tensor loss = std::exchange(each, torch::Tensor());
    if (loss.defined()) sum = sum.defined() ? sum + loss : loss;
  }
  return sum;
}

std::vector<accelerate::ModelPart> LmImpl::parts() const {
  std::vector<accelerate::ModelPart> parts = {{.name = "tokens", .uses = {"tokens"}}};
  if (is_gpt(config_)) parts.front().uses.emplace_back("positions");
  for (int64_t i = 0; i < config_.layers; ++i) {
    parts.push_back({.name = "blocks." + std::to_string(i)});
  }
  parts.push_back({.name = "head", .uses = {"norm", head_ ? "head" : "tokens"}});
  return parts;
}

// Attention is divided by heads of keys, the perceptron and the vocabulary anywhere. With sequence
// shards norms have parts, and positions are added to whole sequences.
std::optional<accelerate::TensorParallelPlan> LmImpl::tensor_parallel_plan() const {
  using enum accelerate::TensorStyle;
  accelerate::TensorParallelPlan plan = {
      {.pattern = "tokens", .style = kEmbedding, .sequence = !is_gpt(config_)},
      {.pattern = "blocks.*.norm1", .sequence = true},
      {.pattern = "blocks.*.norm2", .sequence = true},
      {.pattern = "norm", .sequence = true},
      {.pattern = "blocks.*.attention.qkv", .style = kColumn, .groups = config_.kv_heads},
      {.pattern = "blocks.*.attention.project", .style = kRow}};
  // Experts are divided along ep.
  if (config_.experts == 0 || config_.shared_intermediate > 0) {
    const std::string mlp = config_.experts == 0 ? "blocks.*.mlp." : "blocks.*.mlp.shared.";
    plan.rules.push_back({.pattern = mlp + "up", .style = kColumn});
    plan.rules.push_back({.pattern = mlp + "down", .style = kRow});
    if (!is_gpt(config_)) plan.rules.push_back({.pattern = mlp + "gate", .style = kColumn});
  }
  if (head_) {
    plan.rules.push_back({.pattern = "head", .style = kColumn, .gather_output = true});
  }
  return plan;
}

torch::Tensor counting_sequences(const Config& config, int64_t count) {
  const torch::Tensor first = at::randint(config.vocabulary, {count, 1}, at::kLong);
  return (first + at::arange(config.sequence_length + 1, at::kLong)).remainder(config.vocabulary);
}

}  // namespace lm
