#include "accelerate/parallel/sequence/attention_block.h"

#include <array>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>

#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>

namespace accelerate {
namespace {

constexpr double kNoDropout = 0;

// Kernels walk through a head's vector without a stride.
at::Tensor with_dense_heads(const at::Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

// Each head of keys once for each head of queries that has it: with fewer heads of keys the CPU's
// operator of some releases of LibTorch reads and writes beyond its memory.
at::Tensor repeated(const at::Tensor& keys, const at::Tensor& queries) {
  const int64_t times = queries.size(1) / keys.size(1);
  if (times == 1) return with_dense_heads(keys);
  return keys.unsqueeze(2)
      .expand({keys.size(0), keys.size(1), times, keys.size(2), keys.size(3)})
      .flatten(1, 2);
}

// Flash attention has no float32, and reads vectors in pieces of 16 bytes.
bool is_flash(const at::Tensor& queries) {
  const bool is_half = queries.scalar_type() == at::kHalf || queries.scalar_type() == at::kBFloat16;
  return is_half && queries.size(3) % 8 == 0 && queries.size(3) <= 256;
}

// Memory-efficient attention keeps a number for each query up to the next multiple of this.
constexpr int64_t kLogSumStep = 32;

AttentionBlock attend_on_cuda(const at::Tensor& queries, const at::Tensor& keys,
                              const at::Tensor& values, const AttentionRule& rule) {
  if (is_flash(queries)) {
    const auto result = at::_scaled_dot_product_flash_attention(
        queries, keys, values, kNoDropout, rule.is_causal, /*return_debug_mask=*/false, rule.scale);
    return {.output = std::get<0>(result), .log_sum = std::get<1>(result)};
  }
  const auto result = at::_scaled_dot_product_efficient_attention(
      queries, keys, values, /*attn_bias=*/{}, /*compute_log_sumexp=*/true, kNoDropout,
      rule.is_causal, rule.scale);
  return {.output = std::get<0>(result),
          .log_sum = std::get<1>(result).narrow(2, 0, queries.size(2))};
}

AttentionGradients attend_backward_on_cuda(const at::Tensor& gradient, const at::Tensor& queries,
                                           const at::Tensor& keys, const at::Tensor& values,
                                           const AttentionBlock& whole, const AttentionRule& rule) {
  // What would say which elements a dropout left out.
  const at::Tensor seed = at::empty({}, at::kLong), offset = at::empty({}, at::kLong);
  if (is_flash(queries)) {
    auto [of_queries, of_keys, of_values] = at::_scaled_dot_product_flash_attention_backward(
        gradient, queries, keys, values, whole.output, whole.log_sum, /*cum_seq_q=*/{},
        /*cum_seq_k=*/{}, queries.size(2), keys.size(2), kNoDropout, rule.is_causal, seed, offset,
        rule.scale);
    return {std::move(of_queries), std::move(of_keys), std::move(of_values)};
  }
  const int64_t beyond = (kLogSumStep - queries.size(2) % kLogSumStep) % kLogSumStep;
  const at::Tensor log_sum =
      at::constant_pad_nd(whole.log_sum, {0, beyond}, std::numeric_limits<double>::infinity());
  auto [of_queries, of_keys, of_values, of_bias] =
      at::_scaled_dot_product_efficient_attention_backward(
          gradient, queries, keys, values, /*attn_bias=*/{}, whole.output, log_sum, seed, offset,
          kNoDropout, std::array<bool, 4>{true, true, true, false}, rule.is_causal, rule.scale);
  return {std::move(of_queries), std::move(of_keys), std::move(of_values)};
}

}  // namespace

AttentionBlock attend(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                      const AttentionRule& rule) {
  const at::Tensor own = with_dense_heads(queries);
  const at::Tensor seen = repeated(keys, queries), taken = repeated(values, queries);
  if (queries.is_cuda()) return attend_on_cuda(own, seen, taken, rule);
  const auto result = at::_scaled_dot_product_flash_attention_for_cpu(
      own, seen, taken, kNoDropout, rule.is_causal, /*attn_mask=*/{}, rule.scale);
  return {.output = std::get<0>(result), .log_sum = std::get<1>(result)};
}

AttentionGradients attend_backward(const at::Tensor& gradient, const at::Tensor& queries,
                                   const at::Tensor& keys, const at::Tensor& values,
                                   const AttentionBlock& whole, const AttentionRule& rule) {
  const at::Tensor of_output = with_dense_heads(gradient), own = with_dense_heads(queries);
  const at::Tensor seen = repeated(keys, queries), taken = repeated(values, queries);
  const AttentionBlock result = {.output = with_dense_heads(whole.output),
                                 .log_sum = whole.log_sum.contiguous()};
  if (queries.is_cuda()) {
    return attend_backward_on_cuda(of_output, own, seen, taken, result, rule);
  }
  auto [of_queries, of_keys, of_values] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      of_output, own, seen, taken, result.output, result.log_sum, kNoDropout, rule.is_causal,
      /*attn_mask=*/{}, rule.scale);
  return {std::move(of_queries), std::move(of_keys), std::move(of_values)};
}

}  // namespace accelerate
