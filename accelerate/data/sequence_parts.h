/// Cuts batches of sequences into the parts that ranks have of them, as HF Accelerate's adapter for
/// Ulysses does.
///
/// In a batch that is a std::map from names to tensors, names say what is what:
///   - "labels" become "shift_labels": each token's label is the next one's, the last one's is
///     -100, which losses ignore. This comes before the cut, so that no part lacks the label of its
///     last token. A batch may have "shift_labels" already, but not both.
///   - "position_ids" are added beside "input_ids" if they are missing: 0, 1, 2, ... of the whole
///     sequence, because a model would begin at 0 in each part.
/// In other trees (tensors/tree.h) labels have to be shifted, and positions given, by the dataset.
/// Then each tensor with two dims or more is cut along dim 1. Others belong to samples as a whole,
/// and stay as they are.
///
/// Shapes:  in [batch, length, ...]; out [batch, length / ranks, ...].
/// Errors:  c10::ValueError naming the rank, for a length that ranks do not divide evenly, with the
///          nearest ones that they do; that is not the one agreed on; or that is not the same for
///          all tensors of the batch.
/// Threads: functions of their arguments.
/// Mirrors: deepspeed runtime/sequence_parallel/ulysses_sp.py, UlyssesSPDataLoaderAdapter.
/// Differs: position_ids are added.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>

#include "accelerate/tensors/tree.h"

namespace accelerate {

/// Which part of sequences a rank has.
struct SequencePart {
  int index = 0;
  int count = 1;
  /// The length that all sequences must have; 0: any.
  int64_t length = 0;
  /// The rank in the job, for messages.
  int rank = 0;
};

using NamedBatch = std::map<std::string, at::Tensor>;

namespace internal {

// Labels and positions of whole sequences.
NamedBatch with_shifted_labels(NamedBatch batch, const SequencePart& part);

// The length of a batch's sequences, as this tensor has it.
int64_t checked_length(const at::Tensor& whole, const SequencePart& part);

// `length`: that of the batch; 0 where this tensor is the first that says so.
at::Tensor cut_sequences(const at::Tensor& whole, const SequencePart& part, int64_t& length);

}  // namespace internal

/// The rank's part of a batch of whole sequences. Its tensors have memory of their own.
template <typename Batch>
Batch part_of_sequences(Batch batch, const SequencePart& part) {
  int64_t length = 0;
  if constexpr (std::is_same_v<Batch, NamedBatch>) {
    batch = internal::with_shifted_labels(std::move(batch), part);
    if (const auto inputs = batch.find("input_ids"); inputs != batch.end()) {
      length = internal::checked_length(inputs->second, part);
    }
  }
  return tree_map(std::move(batch), [&](const at::Tensor& whole) {
    return internal::cut_sequences(whole, part, length);
  });
}

}  // namespace accelerate
