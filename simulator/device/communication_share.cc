#include "simulator/device/communication_share.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace accelerate::simulator {
namespace {

// Kernels always keep some.
constexpr double kMostShare = 0.9;
// A program that never waits for its collectives has older kernels forgotten.
constexpr size_t kMostBusy = 4096;

}  // namespace

// Between the times at which collectives begin and end, a kernel has a constant share.
int64_t CommunicationShare::end_beside(absl::Span<const Interval> collectives, int64_t start_ns,
                                       int64_t duration_ns) {
  auto left = static_cast<double>(duration_ns);
  auto now = static_cast<double>(start_ns);
  while (true) {
    double taken = 0;
    double until = std::numeric_limits<double>::infinity();
    for (const Interval& each : collectives) {
      const auto start = static_cast<double>(each.start_ns);
      const auto end = static_cast<double>(each.end_ns);
      if (now < start) {
        until = std::min(until, start);
      } else if (now < end) {
        until = std::min(until, end);
        taken += each.share;
      }
    }
    const double rate = 1 - std::min(taken, kMostShare);
    if (left <= (until - now) * rate) return std::llround(now + left / rate);
    left -= (until - now) * rate;
    now = until;
  }
}

int64_t CommunicationShare::launch(int stream, int64_t host_ns, int64_t start_ns,
                                   int64_t duration_ns, bool is_bound_by_arithmetic) {
  std::erase_if(known_, [host_ns](const Interval& each) { return each.end_ns <= host_ns; });
  const int64_t end_ns = is_bound_by_arithmetic && !known_.empty()
                             ? end_beside(known_, start_ns, duration_ns)
                             : start_ns + duration_ns;
  if (calls_ > 0) {
    Busy* const last = busy_.empty() ? nullptr : &busy_.back();
    if (last != nullptr && last->stream == stream && last->end_ns == start_ns &&
        last->is_bound_by_arithmetic == is_bound_by_arithmetic) {
      last->end_ns = end_ns;
    } else {
      if (busy_.size() == kMostBusy) busy_.erase(busy_.begin(), busy_.begin() + kMostBusy / 2);
      busy_.push_back({stream, is_bound_by_arithmetic, start_ns, end_ns});
    }
  }
  return end_ns - start_ns;
}

void CommunicationShare::add_finished(int64_t start_ns, int64_t end_ns, double share,
                                      absl::FunctionRef<void(int stream, int64_t end_ns)> delay) {
  if (calls_ > 0) --calls_;
  if (end_ns > start_ns && share > 0) {
    const Interval collective = {start_ns, end_ns, share};
    // A kernel that takes longer pushes those behind it, up to the next gap.
    struct Ends {
      int64_t before_ns = 0, after_ns = 0;
    };
    std::map<int, Ends> ends;  // of each stream's latest kernel
    for (Busy& each : busy_) {
      Ends& end = ends[each.stream];
      const int64_t duration_ns = each.end_ns - each.start_ns;
      end.before_ns = each.end_ns;
      each.start_ns = std::max(each.start_ns, end.after_ns);
      each.end_ns = each.is_bound_by_arithmetic
                        ? end_beside({&collective, 1}, each.start_ns, duration_ns)
                        : each.start_ns + duration_ns;
      end.after_ns = each.end_ns;
    }
    for (const auto& [stream, end] : ends) {
      if (end.after_ns > end.before_ns) delay(stream, end.after_ns);
    }
    known_.push_back(collective);
  }
  if (calls_ == 0) busy_.clear();
}

}  // namespace accelerate::simulator
