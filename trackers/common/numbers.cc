#include "trackers/common/numbers.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace accelerate::trackers {

Histogram make_histogram(const std::vector<double>& values, int bins) {
  Histogram histogram;
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const double value : values) {
    if (std::isnan(value)) {
      ++histogram.nan;
    } else if (std::isinf(value)) {
      ++histogram.infinite;
    } else {
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  if (low > high) return histogram;
  if (low == high) {
    const double half = std::max(0.5, std::abs(low) * 1e-9);
    low -= half;
    high += half;
  }
  for (int i = 0; i <= bins; ++i) {
    const double share = static_cast<double>(i) / bins;
    histogram.edges.push_back(low * (1 - share) + high * share);
  }
  histogram.edges.back() = high;
  histogram.counts.resize(static_cast<size_t>(bins));
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    const auto above = std::upper_bound(histogram.edges.begin(), histogram.edges.end(), value);
    const auto bin = std::clamp<int64_t>(above - histogram.edges.begin() - 1, 0, bins - 1);
    ++histogram.counts[static_cast<size_t>(bin)];
  }
  return histogram;
}

}  // namespace accelerate::trackers
