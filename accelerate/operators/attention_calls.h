/// Attention as handlers see it that divide scaled_dot_product_attention among ranks with parts of
/// the same sequences.
///
/// Threads: values.
#pragma once

#include <cstdint>
#include <string>

#include "accelerate/base/mesh_axis.h"
#include "accelerate/operators/operator_mode.h"

namespace accelerate {

/// Refuses an operator, other than scaled_dot_product_attention, that computes attention among the
/// tokens of one rank: a kernel of attention, or the softmax of scores of as many tokens as the
/// rank has of each sequence. With less than 2 `tokens` no softmax is taken for that. `rank`: this
/// one in the job. `axis`: the one along which ranks divide sequences.
/// Errors: c10::ValueError naming the rank and the operator.
void check_attention_by_hand(const OperatorCall& call, int64_t tokens, int rank, MeshAxis axis);

/// "sp: ranks divided 4 calls of attention", for Technique::passes_text.
std::string divided_attention_text(MeshAxis axis, int64_t calls);

}  // namespace accelerate
