/// What an operator does with the dims of its arguments, and where these say so, as its schema
/// tells by names. Names are compared once for each operator and thread.
///
/// Threads: facts are those of the calling thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "accelerate/base/fields.h"
#include "accelerate/operators/operator_mode.h"

namespace accelerate {

/// The positions of arguments with these names; -1 for an operator without one.
struct ArgumentPositions {
  int dim, dim0, dim1, dims, normalized_shape, other;
  int start, end, step, length, chunks, split_size, indices, equation, tensors, start_dim;
  int dimension, training;
};
ACCELERATE_FIELDS(ArgumentPositions, dim, dim0, dim1, dims, normalized_shape, other, start, end,
                  step, length, chunks, split_size, indices, equation, tensors, start_dim,
                  dimension, training)

struct OperatorFacts : ArgumentPositions {
  enum class Kind : uint8_t {
    kPointwise,  ///< element by element, or made of other operators
    kSameDims,
    kJoin,  ///< puts tensors together along a dim
    kView,
    kTranspose,
    kPermute,
    kMatrixTranspose,
    kUnsqueeze,
    kSqueeze,
    kSelect,
    kReduction,
    kNorm,
    kBatchNorm,  ///< along all dims but the second one, where it trains
    kAllDims,
    kLastDims,  ///< places in the last dims, as pools do; see last_dims
    kProduct,
    kAddedProduct,   ///< a product, added to the first argument
    kVectorProduct,  ///< of a matrix and a vector
    kRange,          ///< takes some of a dim that follow each other
    kWindows,        ///< takes ranges of a dim, which become a new last dim
    kGather,         ///< reads at numbers along a dim
    kScatter,        ///< writes at numbers along a dim
    kIndex,          ///< reads at numbers of several dims
    kIndexPut,       ///< writes at numbers of several dims
    kFlip,           ///< moves along dims
    kRoll,           ///< as kFlip; without dims along all of them
    kTriangle,       ///< goes by places in the last two dims
    kCreation,       ///< makes a tensor anew, which is like its argument
    kLinear,         ///< a product with a weight, which has its dims the other way round
    kEinsum,
    kAttention,
  };

  explicit OperatorFacts(const c10::OperatorHandle& op);

  Kind kind;
  /// Whether the operator writes into its first result, which is an argument.
  bool writes;
  /// Whether the operator gives the values of its argument, as a view or as a copy.
  bool gives_same_values;
  /// aten::add, or in place.
  bool adds;
  size_t arguments, results;

  /// For kLastDims: how many.
  int last_dims;
};

/// The facts live as long as the thread.
const OperatorFacts& facts_of(const c10::OperatorHandle& op);

/// The argument of a call, before it proceeds, at a position of OperatorFacts; null for -1.
inline const c10::IValue* argument_at(const OperatorCall& call, const OperatorFacts& facts,
                                      int position) {
  if (position < 0) return nullptr;
  return &torch::jit::peek(call.stack(), static_cast<size_t>(position), facts.arguments);
}

}  // namespace accelerate
