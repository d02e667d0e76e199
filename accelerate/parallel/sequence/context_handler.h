/// Divides the attention of a forward pass among the ranks along cp.
///
/// scaled_dot_product_attention of this rank's tokens becomes ring_attention. Other operators pass,
/// but for attention that a module computes itself, which would be that of this rank's tokens
/// alone.
///
/// Errors:  c10::ValueError naming the rank and the operator: for such attention
///          (DividedAttention); for attention with a mask or dropout, of other sequences
///          than those of the scope (as where tokens are generated one by one), and of shapes that
///          the kernels do not have.
/// Collective over the group of the ring: attention, and its backward pass.
/// Threads: those of the model's passes.
#pragma once

#include <cstdint>
#include <utility>

#include "accelerate/base/mesh_axis.h"
#include "accelerate/operators/attention_calls.h"
#include "accelerate/parallel/sequence/ring_attention.h"

namespace accelerate {

class ContextHandler final : public DividedAttention {
 public:
  /// `tokens`: how many this rank has of each sequence; 0: as many as attention is given.
  ContextHandler(ContextRing ring, int rank, int64_t tokens)
      : DividedAttention(MeshAxis::kCp, rank, tokens), ring_(std::move(ring)) {}

  const ContextRing& ring() const { return ring_; }

 private:
  at::Tensor attention(c10::ArrayRef<c10::IValue> arguments) override;

  const ContextRing ring_;
};

}  // namespace accelerate
