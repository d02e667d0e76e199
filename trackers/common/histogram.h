/// How numbers are distributed: counts between edges.
/// Threads: a pure function.
#pragma once

#include <cstdint>
#include <vector>

namespace accelerate::trackers {

struct Histogram {
  /// One more than counts, rising. Of no finite numbers: none.
  std::vector<double> edges;
  /// How many are at least an edge and less than the next, or equal to the last.
  std::vector<int64_t> counts;
  int64_t nan = 0;
  int64_t infinite = 0;  // of either sign
};

/// In bins of equal width from the least finite number to the greatest; where these are equal, half
/// below and half above it.
Histogram make_histogram(const std::vector<double>& values, int bins = 64);

}  // namespace accelerate::trackers
