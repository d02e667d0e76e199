/// Attention of some queries to some of the keys that they see.
///
/// The result for a block of keys comes with the log-sum-exp of the queries' scores, by which
/// results for several blocks are joined. The backward pass of a block takes the log-sum-exp of all
/// keys, and gives the block's share of the gradients.
///
/// The operators are those that scaled_dot_product_attention takes where it is fused: CPUs and
/// simulated devices have one of their own; on CUDA it is flash attention for half precision, and
/// memory-efficient attention for other dtypes.
/// Shapes: queries [batch, heads, length, size of a head]; keys and values [batch, heads of keys,
///         length of theirs, size of a head], where each head of keys is that of as many heads of
///         queries, which follow each other.
/// Threads: pure functions. Gradients do not flow.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace accelerate {

struct AttentionRule {
  /// Whether query i sees the keys up to i; else it sees all. Needs as many keys as queries.
  bool is_causal = false;
  /// By what scores are multiplied; absent: 1 / sqrt(size of a head).
  std::optional<double> scale = std::nullopt;
};

struct AttentionBlock {
  /// As the queries.
  at::Tensor output;
  /// [batch, heads, length], in float32, or in double for queries in double. In natural units.
  at::Tensor log_sum;
};

AttentionBlock attend(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                      const AttentionRule& rule);

/// In the dtype of the queries; those of keys and values for each head of queries, [batch, heads,
/// length of keys, size of a head].
struct AttentionGradients {
  at::Tensor queries, keys, values;
};

/// `whole`: the result for all keys, and its log-sum-exp. `gradient`: of that result.
AttentionGradients attend_backward(const at::Tensor& gradient, const at::Tensor& queries,
                                   const at::Tensor& keys, const at::Tensor& values,
                                   const AttentionBlock& whole, const AttentionRule& rule);

}  // namespace accelerate
