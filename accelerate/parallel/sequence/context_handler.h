/// Divides the attention of a forward pass among the ranks along cp.
///
/// scaled_dot_product_attention of this rank's tokens becomes ring_attention. Other operators pass,
/// but for attention that a module computes itself, which would be that of this rank's tokens
/// alone.
///
/// Errors:  c10::ValueError naming the rank and the operator: for such attention
///          (check_attention_by_hand); for attention with a mask or dropout, of other sequences
///          than those of the scope (as where tokens are generated one by one), and of shapes that
///          the kernels do not have.
/// Collective over the group of the ring: attention, and its backward pass.
/// Threads: those of the model's passes.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "accelerate/operators/operator_mode.h"
#include "accelerate/parallel/sequence/ring_attention.h"

namespace accelerate {

class ContextHandler final : public OperatorHandler {
 public:
  /// `rank`: this one in the job, for messages. `tokens`: how many this rank has of each sequence;
  /// 0: as many as attention is given.
  ContextHandler(ContextRing ring, int rank, int64_t tokens);

  void call(const OperatorCall& call) override;

  const ContextRing& ring() const { return ring_; }
  /// How often attention was divided so far.
  int64_t num_calls() const { return num_calls_; }

 private:
  at::Tensor attention(const OperatorCall& call);
  std::string on_this_rank() const;

  const ContextRing ring_;
  const int rank_;
  const int64_t tokens_;
  std::atomic<int64_t> num_calls_ = 0;
};

}  // namespace accelerate
