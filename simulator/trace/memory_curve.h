/// One rank's memory by category over time, in a bounded number of samples.
///
/// Time is divided into equal windows, at first of one nanosecond, and each window keeps its
/// highest and its last sample. When there are too many samples, the windows double in length. The
/// peak and the latest value are therefore always kept. Units: bytes, nanoseconds. Threads: one at
/// a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulator/trace/trace.h"

namespace accelerate::simulator {

int64_t total_bytes(const MemorySample& sample);

class MemoryCurve {
 public:
  explicit MemoryCurve(int rank, size_t max_samples);

  /// Adds `delta` to a category. A time that is before the latest time counts as the latest time.
  void add(int64_t at_ns, MemoryCategory category, int64_t delta);
  /// Adds a sample of an existing curve, to build a coarser curve from it.
  void add(const MemorySample& sample);

  /// The first sample with the highest total. Exact.
  const MemorySample& peak() const { return peak_; }
  const std::vector<MemorySample>& samples() const { return samples_; }

 private:
  void put(const MemorySample& sample);

  int32_t rank_;
  size_t max_samples_;
  int64_t window_ns_ = 1;
  MemorySample now_;
  MemorySample peak_;
  std::vector<MemorySample> samples_;
  size_t window_begin_ = 0;  // The samples of the last window start here.
};

}  // namespace accelerate::simulator
