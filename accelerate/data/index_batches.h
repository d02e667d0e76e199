/// The samples of one pass: the order in which they are visited, and the batches.
///
/// Threads: immutable; share them freely.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accelerate {

/// The order in which one pass visits a dataset's samples: position -> index. The order 0, 1, 2, …
/// takes no memory, so that passing over a huge dataset, or entering it in its middle, costs
/// nothing.
class IndexOrder {
 public:
  /// Visits nothing.
  IndexOrder() = default;

  /// 0, 1, …, size - 1. \pre size >= 0.
  static IndexOrder range(int64_t size);

  /// These indices. Errors: c10::ValueError unless it is a contiguous int64 vector on the CPU.
  explicit IndexOrder(at::Tensor indices);

  /// How many samples are visited.
  int64_t size() const { return size_; }

  /// Writes the indices at positions [begin, begin + count) to `out`. \pre They exist.
  void copy(int64_t begin, int64_t count, int64_t* out) const;

  /// int64 [size()] on the CPU.
  at::Tensor tensor() const;

 private:
  int64_t size_ = 0;
  at::Tensor indices_;  // undefined: a range
};

/// The batches of one pass, as lists of sample indices that can be asked for in any order.
///
/// Equally long batches at equal distances in an order are a few numbers, however many there are;
/// batches of a user's own making are spans of it. A last batch that differs is kept apart.
class IndexBatches {
 public:
  /// Where the regular batches lie in the order. Units: samples, `count` excepted.
  struct Layout {
    int64_t first = 0;   ///< Where batch 0 begins.
    int64_t stride = 0;  ///< From one batch's begin to the next's.
    int64_t length = 0;  ///< Samples of a batch.
    int64_t count = 0;   ///< How many batches.
  };

  /// Where one batch lies in the order.
  struct Span {
    int64_t begin = 0;
    int64_t length = 0;
  };

  /// No batches.
  IndexBatches() = default;

  /// The regular batches and, unless it is empty, `last` after them.
  IndexBatches(IndexOrder order, const Layout& layout, std::vector<int64_t> last = {});

  /// Batches of any lengths. Errors: c10::ValueError for a span outside the order.
  IndexBatches(IndexOrder order, std::vector<Span> spans);

  /// Exactly these batches.
  static IndexBatches from_lists(const std::vector<std::vector<int64_t>>& lists);

  int64_t size() const { return regular_count() + (last_.empty() ? 0 : 1); }

  /// Whether it was made of a layout.
  bool is_regular() const { return spans_.empty(); }
  const IndexOrder& order() const { return order_; }
  const std::vector<Span>& spans() const { return spans_; }

  /// How many samples batch i has. \pre 0 <= i < size().
  int64_t length(int64_t i) const;

  /// Writes the indices of batch i, length(i) of them. \pre as length.
  void copy(int64_t i, int64_t* out) const;

  /// Batch i in memory of its own: int64 [length(i)] on the CPU. \pre as length.
  at::Tensor operator[](int64_t i) const;

 private:
  int64_t regular_count() const {
    return is_regular() ? layout_.count : static_cast<int64_t>(spans_.size());
  }

  IndexOrder order_;
  Layout layout_;
  std::vector<Span> spans_;
  std::vector<int64_t> last_;
};

}  // namespace accelerate
