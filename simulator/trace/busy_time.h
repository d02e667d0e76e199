/// How long one rank computed and communicated, and how much of its communication nothing hid.
///
/// A sum over intervals that overlap across streams, kept while they come in. Intervals of one
/// stream come in order, those of different streams do not: a collective is known when its last
/// member joined, after kernels that start later. So the newest intervals stay open, and older ones
/// are folded into the totals when there are too many.
/// Exact as long as no interval comes later than `limit / 2` others of its sort; the part of one
/// that does is taken to overlap nothing. Units: nanoseconds. Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace accelerate::simulator {

struct Interval {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

class BusyTime {
 public:
  struct Totals {
    int64_t compute_ns = 0;        ///< with at least one kernel or copy
    int64_t communication_ns = 0;  ///< with at least one collective or message
    int64_t exposed_ns = 0;        ///< of the communication, without a kernel
  };

  explicit BusyTime(size_t limit) : limit_(limit) {}

  void add_kernel(Interval interval);
  void add_copy(Interval interval);
  void add_communication(Interval interval);

  /// Of everything so far.
  Totals totals() const;

 private:
  // Unordered between calls of merge(); disjoint and in order after it.
  using Intervals = std::vector<Interval>;

  bool add(Intervals& intervals, Interval interval);
  int64_t late_part(Interval& interval) const;
  void settle(int64_t horizon);
  void settle_half(Intervals& intervals);

  size_t limit_;
  int64_t horizon_ = 0;  // All before is in settled_.
  Totals settled_;
  Intervals kernels_;
  Intervals compute_;  // Kernels and copies.
  Intervals communication_;
};

}  // namespace accelerate::simulator
