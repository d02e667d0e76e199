/// Attention as handlers see it that divide scaled_dot_product_attention among ranks with parts of
/// the same sequences.
///
/// Threads: values.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "accelerate/base/mesh_axis.h"
#include "accelerate/operators/operator_mode.h"

namespace accelerate {

/// Divides scaled_dot_product_attention, and refuses other operators that compute attention among
/// the tokens of one rank: a kernel of attention, or the softmax of scores of as many tokens as the
/// rank has of each sequence. With less than 2 `tokens` no softmax is taken for that.
/// Errors: c10::ValueError naming the rank and the operator.
class DividedAttention : public OperatorHandler {
 public:
  /// `axis`: the one along which ranks divide sequences. `rank`: this one in the job. `tokens`: how
  /// many of each sequence this rank has; 0: unknown.
  DividedAttention(MeshAxis axis, int rank, int64_t tokens)
      : OperatorHandler(OperatorOrder::kAttention), axis_(axis), rank_(rank), tokens_(tokens) {}

  void call(const OperatorCall& call) override;

  /// How often attention was divided so far.
  int64_t num_calls() const { return num_calls_; }

 protected:
  /// What the operator gives for these arguments.
  virtual at::Tensor attention(c10::ArrayRef<c10::IValue> arguments) = 0;

  int64_t tokens() const { return tokens_; }
  /// "rank 1: "
  std::string on_this_rank() const;

 private:
  const MeshAxis axis_;
  const int rank_;
  const int64_t tokens_;
  std::atomic<int64_t> num_calls_ = 0;
};

/// "sp: ranks divided 4 calls of attention", for Technique::passes_text.
std::string divided_attention_text(MeshAxis axis, int64_t calls);

}  // namespace accelerate
