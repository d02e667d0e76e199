/// A table of where a prepared model's parameters are, and of what a rank sends for them.
///
///   print_layout(model);
///
///     layout of 2 ranks, tp 2: rank 0 has 431104 of 842496 elements
///     parameter                            whole    rank 0   how
///     positions                            128x128  128x128  whole
///     tokens.weight                        256x128  128x128  embedding over tp
///     blocks.0-3.norm1.weight              128      128      whole
///     blocks.0-3.attention.qkv.weight      384x128  192x128  column over tp in 4 groups
///     ...
///     a rank sends, in bytes, forward and backward
///     tp: 9728 a token: row layers 4096, column layers 4608, gathered outputs 512, embeddings 512
///
/// Parameters that differ in the numbers of their names alone, as those of blocks, are one line. A
/// column layer cuts the rows of its weight, a row layer its columns, an embedding the words of its
/// table; "dim 1 over cp" is a cut that no rule of a plan has a word for. "rows over dp_shard" are
/// rows of what the cuts left.
///
/// Where ranks divide sequences, a line more says how many calls of attention they divided so far:
/// "cp: ranks divided 8 calls of attention". 0 after a pass means that tokens saw those of one rank
/// alone, or that the pass was of whole sequences.
///
/// What is sent is computed from the layout, in the dtypes of the parameters, for passes that
/// compute nothing twice: 2 (n - 1) / n of the bytes of an all-reduce, (n - 1) / n of those of an
/// all-gather and a reduce-scatter. Column layers of one module with as many input features count
/// as layers of one input, whose gradients ranks sum once. "inputs gathered again" are what
/// column layers gather from sequence shards in backward passes. Sharded parameters are gathered
/// twice where they are freed between forward and backward pass.
/// Threads: the rank's thread.
#pragma once

#include <string>

#include "accelerate/base/access.h"
#include "accelerate/forward/model_state.h"
#include "accelerate/forward/prepared_model.h"

namespace accelerate {

/// The table of this rank. Local.
/// Errors: c10::ValueError for a model that was not prepared.
std::string layout_text(const ModelState& model);

template <typename Module>
std::string layout_text(const PreparedModel<Module>& model) {
  return layout_text(*internal::Access::to(model));
}

namespace internal {

void print_layout(const ModelState& model);

}  // namespace internal

/// Prints the table of the first rank of the job on that rank. Local.
/// Errors: c10::Error for a handle that was reset.
template <typename Module>
void print_layout(const PreparedModel<Module>& model) {
  internal::print_layout(*internal::Access::to(model));
}

}  // namespace accelerate
