/// Models whose sequences the ranks along sp divide, by Ulysses: each rank computes the tokens that
/// it has of each sequence, with all heads. For scaled_dot_product_attention ranks exchange parts
/// of sequences for heads (an all-to-all of the queries, one of the keys and one of the values), so
/// that each attends with all tokens for its own heads, and exchange the results back. Gradients go
/// the same way. Everything else that a decoder's block computes belongs to one token, and stays as
/// it is.
///
/// Heads of keys that several heads of queries share (enable_gqa) travel once, or once for each
/// rank where there are fewer of them than ranks.
///
/// Ranks along sp have all parameters, or shards of them, and other tokens: gradients are means
/// over them, as over ranks with other batches. Where a pass draws random numbers, each rank draws
/// its own (operators/random_streams.h).
///
/// Errors:  c10::ValueError naming the rank: for numbers of heads that ranks do not divide evenly;
///          dropout, which would leave out other places than on one rank; a mask that is not of
///          whole sequences, or has other values for each head; an operator that computes attention
///          by hand, since that would be among the rank's own tokens alone; a pass that has
///          attended, but got tokens without their positions, which would begin at 0 on each rank.
/// Collective over the ranks along sp: attention, and its backward pass.
/// Threads: the rank's thread; attention those of the model's passes.
#pragma once

#include <memory>
#include <string_view>

#include "accelerate/forward/technique.h"

namespace accelerate {

struct TechniqueContext;

inline constexpr std::string_view kUlyssesTechnique = "ulysses";

/// Null where the mesh has one rank along sp. Collective over the ranks along sp, see
/// RandomStreams::along.
std::unique_ptr<Technique> make_ulysses_technique(const TechniqueContext& context);

}  // namespace accelerate
