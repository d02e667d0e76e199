/// Which tokens of a sequence each rank along cp has.
///
/// A rank has one part of each sequence, or two. With causal attention a token sees those before
/// it, so that a part from the end of a sequence costs more than one from its head. In balanced
/// order a rank has a part from each end and ranks compute as much as each other: of 2 n parts rank
/// r has r and 2 n - 1 - r.
///
/// Threads: pure functions.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace accelerate {

enum class SequenceOrder {
  kBalanced,  ///< a part from the head and one from the tail
  kInTurn,    ///< one part, in the order of ranks
};

/// The place of a rank among those that divide sequences.
struct SequencePlace {
  int rank = 0;
  int ranks = 1;
  SequenceOrder order = SequenceOrder::kBalanced;

  /// Into how many parts of one length sequences are divided.
  int parts() const { return ranks > 1 && order == SequenceOrder::kBalanced ? 2 * ranks : ranks; }
};

/// The tokens of this rank, in memory of their own; their order is that of the sequence. All of
/// them for one rank. Shapes: in [..., length, ...], out [..., length / ranks, ...].
/// \pre The length is a multiple of place.parts().
at::Tensor part_of_sequence(const at::Tensor& whole, int64_t dim, const SequencePlace& place);

/// All tokens in the order of the sequence, of what ranks have of them, one rank after the other.
/// Gradients flow. Shapes: [..., length, ...].
/// \pre The length is a multiple of place.parts().
at::Tensor whole_sequence(const at::Tensor& parts, int64_t dim, const SequencePlace& place);

}  // namespace accelerate
