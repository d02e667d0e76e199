#include "simulator/trace/memory_curve.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace accelerate::simulator {

int64_t total_bytes(const MemorySample& sample) {
  return std::accumulate(sample.bytes.begin(), sample.bytes.end(), int64_t{0});
}

// Doubling the windows helps as long as there are more than two samples.
MemoryCurve::MemoryCurve(int rank, size_t max_samples)
    : rank_(rank), max_samples_(std::max<size_t>(max_samples, 4)) {
  now_.rank = rank;
  peak_.rank = rank;
}

void MemoryCurve::add(int64_t at_ns, MemoryCategory category, int64_t delta) {
  MemorySample sample = now_;
  sample.at_ns = at_ns;
  sample.bytes[static_cast<size_t>(category)] += delta;
  add(sample);
}

void MemoryCurve::add(const MemorySample& sample) {
  const int64_t latest = now_.at_ns;
  now_ = sample;
  now_.rank = rank_;
  now_.at_ns = std::max(sample.at_ns, latest);
  if (total_bytes(now_) > total_bytes(peak_)) peak_ = now_;
  put(now_);
  while (samples_.size() > max_samples_) {
    window_ns_ *= 2;
    window_begin_ = 0;
    for (const MemorySample& each : std::exchange(samples_, {})) put(each);
  }
}

void MemoryCurve::put(const MemorySample& sample) {
  const bool same_window =
      !samples_.empty() && samples_[window_begin_].at_ns / window_ns_ == sample.at_ns / window_ns_;
  if (!same_window) {
    window_begin_ = samples_.size();
    samples_.push_back(sample);
    return;
  }
  // The window holds its highest sample and, if that is another sample, its last one.
  if (total_bytes(sample) >= total_bytes(samples_[window_begin_])) {
    samples_.resize(window_begin_);
  } else {
    samples_.resize(window_begin_ + 1);
  }
  samples_.push_back(sample);
}

}  // namespace accelerate::simulator
