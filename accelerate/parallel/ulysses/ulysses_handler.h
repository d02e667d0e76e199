/// Computes the attention of sequences that ranks along sp divide, in forward passes.
///
/// Each rank has a part of the tokens of each sequence, with all heads. For
/// scaled_dot_product_attention ranks exchange parts of sequences for heads (an all-to-all of the
/// queries, one of the keys and one of the values), so that each attends with all tokens for its
/// own heads, and exchange the results back. Gradients go the same way. Everything else that a
/// decoder's block computes belongs to one token, and stays as it is.
///
/// Heads of keys that several heads of queries share (enable_gqa) travel once, or once for each
/// rank where there are fewer of them than ranks.
///
/// Errors:  c10::ValueError naming the rank: for numbers of heads that ranks do not divide evenly;
///          dropout, which would leave out other places than on one rank; a mask that is not of
///          whole sequences, or has other values for each head; an operator that computes attention
///          by hand, since that would be among the rank's own tokens alone.
/// Collective over the ranks along sp: attention, and its backward pass.
/// Threads: those of the model's passes.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "accelerate/comm/process_group.h"
#include "accelerate/operators/operator_mode.h"

namespace accelerate {

class UlyssesHandler final : public OperatorHandler {
 public:
  /// `group`: the ranks along sp. `rank`: this one in the job, for messages. `tokens`: how many of
  /// each sequence this rank has; 0: unknown.
  UlyssesHandler(ProcessGroupPtr group, int rank, int64_t tokens);

  void call(const OperatorCall& call) override;

  /// How many attentions it has computed.
  int64_t attentions() const { return attentions_; }

 private:
  struct Attention {
    at::Tensor queries, keys, values;  // [batch, heads, tokens, size of a head]
    at::Tensor mask;                   // may be undefined
    double dropout = 0;
    bool is_causal = false;
    std::optional<double> scale;
    bool shares_key_heads = false;
  };
  at::Tensor attend(const Attention& attention) const;
  void check(const Attention& attention) const;
  void check_mask(const Attention& attention) const;
  // "rank 1: "
  std::string on_this_rank() const;

  const ProcessGroupPtr group_;
  const int rank_;
  const int64_t tokens_;
  std::atomic<int64_t> attentions_ = 0;
};

}  // namespace accelerate
