/// The batches of one epoch, as lists of sample indices.
///
/// All batches but the last are equally long views into the epoch's order at equal distances, so
/// the object is a few numbers and making a batch copies nothing. The last may differ.
/// Threads: immutable.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace accelerate {

class IndexBatches {
 public:
  /// Where the regular batches lie in the order. Units: samples, `count` excepted.
  struct Layout {
    int64_t first = 0;   ///< Where batch 0 begins.
    int64_t stride = 0;  ///< From one batch's begin to the next's.
    int64_t length = 0;  ///< Of a batch.
    int64_t count = 0;   ///< How many batches.
  };

  /// No batches.
  IndexBatches() = default;

  /// The regular batches and, where it is defined, `last` after them.
  IndexBatches(at::Tensor order, const Layout& layout, at::Tensor last = {});

  int64_t size() const { return layout_.count + (last_.defined() ? 1 : 0); }

  /// Batch i: int64 [length] on the CPU, contiguous; usually a view. \pre 0 <= i < size().
  at::Tensor operator[](int64_t i) const;

 private:
  at::Tensor order_;
  Layout layout_;
  at::Tensor last_;
};

}  // namespace accelerate
