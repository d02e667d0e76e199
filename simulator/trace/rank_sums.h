/// The record of one rank in bounded memory: its busy time and its devices' memory over time.
///
/// Units: bytes, nanoseconds.
/// Threads: one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulator/trace/trace.h"

namespace accelerate::simulator {

struct Interval {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

/// How long one rank computed and communicated, and how much of its communication was exposed, that
/// is, not hidden behind kernels.
///
/// The sums over intervals that overlap across streams are computed while intervals arrive. The
/// intervals of one stream arrive in order, those of different streams do not: a collective is
/// recorded when its last member joins, after kernels that start later. Therefore the newest
/// intervals stay open, and older ones are folded into the totals when there are too many.
/// The totals are exact as long as no interval arrives later than `limit / 2` others of its kind;
/// the part of an interval that is too late counts as overlapping nothing.
class BusyTime {
 public:
  struct Totals {
    int64_t compute_ns = 0;        ///< with at least one kernel or copy
    int64_t communication_ns = 0;  ///< with a collective, a message or a wait for one
    int64_t exposed_ns = 0;        ///< the part of communication_ns without a kernel
  };

  explicit BusyTime(size_t limit) : limit_(limit) {}

  void add_kernel(Interval interval);
  void add_copy(Interval interval);
  void add_communication(Interval interval);

  /// The totals of all intervals so far.
  Totals totals() const;

 private:
  // Unordered between calls of merge(); disjoint and in order after a call.
  using Intervals = std::vector<Interval>;

  bool add(Intervals& intervals, Interval interval);
  int64_t late_part(Interval& interval) const;
  void fold_before(int64_t horizon);
  void fold_half(Intervals& intervals);

  size_t limit_;
  int64_t horizon_ = 0;  // settled_ has all time before it.
  Totals settled_;
  Intervals kernels_;
  Intervals compute_;  // Kernels and copies.
  Intervals communication_;
};

int64_t total_bytes(const MemorySample& sample);

/// The memory of one device of a rank by category over time, in a bounded number of samples.
///
/// Time is divided into equal windows, at first of one nanosecond, and each window keeps its
/// highest and its last sample. When there are too many samples, the windows double in length. The
/// peak and the latest value are therefore always kept.
class MemoryCurve {
 public:
  /// `device` is the number among the rank's.
  MemoryCurve(int rank, size_t max_samples, int device = 0);

  /// Adds `delta` to a category. A time that is before the latest time counts as the latest time.
  /// Returns whether what is held now is the peak.
  bool add(int64_t at_ns, MemoryCategory category, int64_t delta);
  /// Adds a sample of an existing curve, to build a coarser curve from it.
  bool add(const MemorySample& sample);

  /// The sample with the highest total: of several, the last one of the first instant. Exact.
  const MemorySample& peak() const { return peak_; }
  const std::vector<MemorySample>& samples() const { return samples_; }

 private:
  void add_to_window(const MemorySample& sample);

  int32_t rank_;
  uint8_t device_;
  size_t max_samples_;
  int64_t window_ns_ = 1;
  MemorySample now_;
  MemorySample peak_;
  std::vector<MemorySample> samples_;
  size_t window_begin_ = 0;  // The samples of the last window start here.
};

/// What a device holds by module, now and at its peak.
class ModuleSums {
 public:
  using Bytes = std::array<int64_t, kNumMemoryCategories>;

  /// Adds `delta` to a module's category; `is_peak` is what the device's MemoryCurve returns for
  /// the same change.
  void add(uint32_t module, MemoryCategory category, int64_t delta, bool is_peak);

  /// By the module's number.
  const std::vector<Bytes>& at_peak() const { return is_at_peak_ ? now_ : at_peak_; }

 private:
  std::vector<Bytes> now_;
  std::vector<Bytes> at_peak_;
  bool is_at_peak_ = false;
};

}  // namespace accelerate::simulator
