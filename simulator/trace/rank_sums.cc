#include "simulator/trace/rank_sums.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace accelerate::simulator {
namespace {

int64_t length(Interval interval) { return interval.end_ns - interval.start_ns; }

int64_t length(const std::vector<Interval>& intervals) {
  int64_t sum = 0;
  for (Interval interval : intervals) sum += length(interval);
  return sum;
}

void merge(std::vector<Interval>& intervals) {
  std::ranges::sort(intervals, {}, &Interval::start_ns);
  size_t kept = 0;
  for (Interval interval : intervals) {
    if (kept > 0 && interval.start_ns <= intervals[kept - 1].end_ns) {
      intervals[kept - 1].end_ns = std::max(intervals[kept - 1].end_ns, interval.end_ns);
    } else {
      intervals[kept++] = interval;
    }
  }
  intervals.resize(kept);
}

// Removes the part before the horizon from merged intervals and returns it.
std::vector<Interval> split_off(std::vector<Interval>& intervals, int64_t horizon) {
  std::vector<Interval> earlier;
  size_t index = 0;
  while (index < intervals.size() && intervals[index].end_ns <= horizon) ++index;
  earlier.assign(intervals.begin(), intervals.begin() + index);
  if (index < intervals.size() && intervals[index].start_ns < horizon) {
    earlier.push_back({intervals[index].start_ns, horizon});
    intervals[index].start_ns = horizon;
  }
  intervals.erase(intervals.begin(), intervals.begin() + index);
  return earlier;
}

// The time that two lists of merged intervals have in common.
int64_t overlap(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  int64_t sum = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const int64_t start = std::max(a[i].start_ns, b[j].start_ns);
    const int64_t end = std::min(a[i].end_ns, b[j].end_ns);
    sum += std::max<int64_t>(0, end - start);
    ++(a[i].end_ns < b[j].end_ns ? i : j);
  }
  return sum;
}

}  // namespace

void BusyTime::add_kernel(Interval interval) {
  settled_.compute_ns += late_part(interval);
  // Both lists get the interval before either of them is folded into the sums.
  const bool too_many_kernels = add(kernels_, interval);
  if (add(compute_, interval)) fold_half(compute_);
  if (too_many_kernels) fold_half(kernels_);
}

void BusyTime::add_copy(Interval interval) {
  settled_.compute_ns += late_part(interval);
  if (add(compute_, interval)) fold_half(compute_);
}

void BusyTime::add_communication(Interval interval) {
  const int64_t late = late_part(interval);
  settled_.communication_ns += late;
  settled_.exposed_ns += late;
  if (add(communication_, interval)) fold_half(communication_);
}

BusyTime::Totals BusyTime::totals() const {
  BusyTime all = *this;
  all.fold_before(std::numeric_limits<int64_t>::max());
  return all.settled_;
}

// Returns whether the list is now too long.
bool BusyTime::add(Intervals& intervals, Interval interval) {
  if (interval.end_ns <= interval.start_ns) return false;
  if (!intervals.empty()) {
    Interval& last = intervals.back();
    // The usual case: a kernel that starts right after the previous one.
    if (interval.start_ns >= last.start_ns && interval.start_ns <= last.end_ns) {
      last.end_ns = std::max(last.end_ns, interval.end_ns);
      return false;
    }
  }
  intervals.push_back(interval);
  return intervals.size() > limit_;
}

// Cuts off the part of the interval that the sums have already, and returns its length.
int64_t BusyTime::late_part(Interval& interval) const {
  if (interval.start_ns >= horizon_) return 0;
  const int64_t late = std::min(interval.end_ns, horizon_) - interval.start_ns;
  interval.start_ns = horizon_;
  return late;
}

void BusyTime::fold_before(int64_t horizon) {
  for (Intervals* intervals : {&kernels_, &compute_, &communication_}) merge(*intervals);
  const Intervals kernels = split_off(kernels_, horizon);
  const Intervals compute = split_off(compute_, horizon);
  const Intervals communication = split_off(communication_, horizon);
  settled_.compute_ns += length(compute);
  settled_.communication_ns += length(communication);
  settled_.exposed_ns += length(communication) - overlap(communication, kernels);
  horizon_ = horizon;
}

void BusyTime::fold_half(Intervals& intervals) {
  merge(intervals);
  if (intervals.size() > limit_ / 2) fold_before(intervals[intervals.size() / 2].start_ns);
}

int64_t total_bytes(const MemorySample& sample) {
  return std::accumulate(sample.bytes.begin(), sample.bytes.end(), int64_t{0});
}

// Doubling the windows helps as long as there are more than two samples.
MemoryCurve::MemoryCurve(int rank, size_t max_samples, int device)
    : rank_(rank),
      device_(static_cast<uint8_t>(device)),
      max_samples_(std::max<size_t>(max_samples, 4)) {
  now_.rank = peak_.rank = rank_;
  now_.device = peak_.device = device_;
}

bool MemoryCurve::add(int64_t at_ns, MemoryCategory category, int64_t delta) {
  MemorySample sample = now_;
  sample.at_ns = at_ns;
  sample.bytes[static_cast<size_t>(category)] += delta;
  return add(sample);
}

bool MemoryCurve::add(const MemorySample& sample) {
  const int64_t latest = now_.at_ns;
  now_ = sample;
  now_.rank = rank_;
  now_.device = device_;
  now_.at_ns = std::max(sample.at_ns, latest);
  // Memory that changes its category does so without changing the total.
  const int64_t total = total_bytes(now_), highest = total_bytes(peak_);
  const bool is_peak = total > highest || (total == highest && now_.at_ns == peak_.at_ns);
  if (is_peak) peak_ = now_;
  add_to_window(now_);
  while (samples_.size() > max_samples_) {
    window_ns_ *= 2;
    window_begin_ = 0;
    for (const MemorySample& each : std::exchange(samples_, {})) add_to_window(each);
  }
  return is_peak;
}

void ModuleSums::add(uint32_t module, MemoryCategory category, int64_t delta, bool is_peak) {
  // Copied when the peak is over, not at each step of the way up.
  if (is_at_peak_ && !is_peak) at_peak_ = now_;
  is_at_peak_ = is_peak;
  if (module >= now_.size()) now_.resize(module + 1);
  now_[module][static_cast<size_t>(category)] += delta;
}

void MemoryCurve::add_to_window(const MemorySample& sample) {
  const bool same_window =
      !samples_.empty() && samples_[window_begin_].at_ns / window_ns_ == sample.at_ns / window_ns_;
  if (!same_window) {
    window_begin_ = samples_.size();
    samples_.push_back(sample);
    return;
  }
  // The window holds its highest sample and, if that is another sample, its last one.
  const bool is_highest = total_bytes(sample) >= total_bytes(samples_[window_begin_]);
  samples_.resize(window_begin_ + (is_highest ? 0 : 1));
  samples_.push_back(sample);
}

}  // namespace accelerate::simulator
