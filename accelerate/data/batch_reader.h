/// Reads the batches of one pass, one after the other: what readers of all kinds have in common.
///
/// Threads: one consumer.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>

#include "accelerate/data/loader_core.h"
#include "accelerate/state/gradient_state.h"
#include "accelerate/tensors/tree.h"

namespace accelerate::internal {

template <typename Batch>
struct ReadBatch {
  std::optional<Batch> batch;
  BatchRound round;
  BatchPosition position;
  /// What GradientState::remainder() becomes with this batch.
  std::optional<int64_t> remainder;
};

template <typename Batch>
class BatchReader {
 public:
  virtual ~BatchReader() = default;
  /// Reads the next batch, or returns false at the end.
  virtual bool next(ReadBatch<Batch>& out) = 0;
  /// The batch of the first samples of the pass, wherever it was entered: `count` of them, or all
  /// that are known; nothing where there are none. \pre Only once the last batch was read.
  virtual std::optional<Batch> first_rows(int64_t count) = 0;
  /// Of a stream: how many of its samples were read. \pre As first_rows.
  virtual int64_t taken() const { return 0; }
};

template <typename Batch>
Batch pin_batch(Batch batch) {
  return tree_map(std::move(batch), [](const at::Tensor& tensor) { return pinned(tensor); });
}

}  // namespace accelerate::internal
