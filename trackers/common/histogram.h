/// Histograms: counts of numbers between edges.
/// Threads: a pure function.
#pragma once

#include <cstdint>
#include <vector>

namespace accelerate::trackers {

struct Histogram {
  /// Ascending, one more than counts. Empty if no number is finite.
  std::vector<double> edges;
  /// Numbers that are at least an edge and less than the next one; the last bin includes its end.
  std::vector<int64_t> counts;
  int64_t nan = 0;
  int64_t infinite = 0;  // of either sign
};

/// Bins of equal width from the least finite number to the greatest. If both are equal, the bins
/// reach half a unit below and above it.
Histogram make_histogram(const std::vector<double>& values, int bins = 64);

}  // namespace accelerate::trackers
