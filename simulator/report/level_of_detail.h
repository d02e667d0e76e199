/// Reduces slices and memory samples to a number that a page or a viewer can show: long slices
/// stay, crowds of short ones become one slice with their number and the sum of their times. The
/// slices of the median step stay as they are if they fit, because a person looks at that step
/// first.
///
/// Each rank gets its part of a budget. The ranks that people look at first (the first, the last to
/// end, the one with the most exposed communication, the one with the highest peak) get more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "simulator/trace/trace.h"

namespace accelerate::simulator {

struct PageSlice {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  uint32_t name = 0;  ///< for a crowd: the name with the most time
  SliceKind kind = SliceKind::kKernel;
  int64_t operation = -1;
  int64_t count = 1;    ///< more than one for a crowd
  int64_t busy_ns = 0;  ///< the sum of the durations
};

/// The slices of one stream of a rank's device, or of the rank's host, in order of time.
struct PageTrack {
  int32_t rank = 0;
  int32_t device = 0;  ///< the number among the rank's
  int32_t stream = 0;
  std::vector<PageSlice> slices;
};

/// The tracks that have slices, by rank, device and stream; at most about `budget` slices in all.
std::vector<PageTrack> page_tracks(const Trace& trace, size_t budget);

/// The memory of each device, by rank and device, in a curve of at most its part of `budget`
/// samples, and of at least `least` for those of ranks that get a larger part. The peaks stay.
std::vector<std::vector<MemorySample>> page_memory(const Trace& trace, size_t budget, size_t least);

/// "sim:3", the name on its node of a rank's device; empty if each rank has one device only.
std::string device_label(const Trace& trace, int rank, int device);

/// The ranks that get a larger part, in order.
std::vector<int> featured_ranks(const Trace& trace);

}  // namespace accelerate::simulator
